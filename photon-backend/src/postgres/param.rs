//! Parameters that know their type, so that a statement takes one round trip and no name on the server: what
//! has no name survives a pooler that changes the connection with each transaction.

use tokio_postgres::types::{ToSql, Type};
use uuid::Uuid;

/// A value that a statement takes.
pub(super) trait Param: ToSql + Sync {
    /// Its type in Postgres.
    const TYPE: Type;
}

macro_rules! param {
    ($($rust:ty => $one:ident, $many:ident;)*) => {$(
        impl Param for $rust {
            const TYPE: Type = Type::$one;
        }
        impl Param for Option<$rust> {
            const TYPE: Type = Type::$one;
        }
        impl Param for Vec<$rust> {
            const TYPE: Type = Type::$many;
        }
        impl Param for Vec<Option<$rust>> {
            const TYPE: Type = Type::$many;
        }
        impl Param for Option<Vec<$rust>> {
            const TYPE: Type = Type::$many;
        }
    )*};
}

impl Param for Vec<u8> {
    const TYPE: Type = Type::BYTEA;
}
impl Param for Option<Vec<u8>> {
    const TYPE: Type = Type::BYTEA;
}
impl Param for Vec<Vec<u8>> {
    const TYPE: Type = Type::BYTEA_ARRAY;
}
impl Param for Vec<Option<Vec<u8>>> {
    const TYPE: Type = Type::BYTEA_ARRAY;
}

param! {
    i32 => INT4, INT4_ARRAY;
    i64 => INT8, INT8_ARRAY;
    bool => BOOL, BOOL_ARRAY;
    &str => TEXT, TEXT_ARRAY;
    String => TEXT, TEXT_ARRAY;
    &[u8] => BYTEA, BYTEA_ARRAY;
    Uuid => UUID, UUID_ARRAY;
}

/// The type of a parameter.
pub(super) fn type_of<T: Param>(_: &T) -> Type {
    T::TYPE
}

/// The parameters of a statement, `$1` first.
macro_rules! params {
    ($($value:expr),* $(,)?) => {
        &[$((
            &$value as &(dyn ::tokio_postgres::types::ToSql + Sync),
            $crate::postgres::param::type_of(&$value),
        )),*]
    };
}
pub(super) use params;
