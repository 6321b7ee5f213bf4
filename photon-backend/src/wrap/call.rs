//! Which call of a store it is.

use std::fmt;

use photon_core::ids::{Incarnation, Shard, SubscriptionId, TopicName};

macro_rules! ops {
    ($($(#[$doc:meta])* $op:ident $name:literal,)+) => {
        /// The methods of a store that return a future.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub enum Op {
            $($(#[$doc])* $op,)+
        }

        impl Op {
            /// All of them.
            pub const ALL: &[Op] = &[$(Op::$op),+];

            /// The name of the method.
            pub fn name(self) -> &'static str {
                match self {
                    $(Op::$op => $name,)+
                }
            }
        }
    };
}

ops! {
    /// [`EventLog::ensure_topic`](photon_core::store::EventLog::ensure_topic).
    EnsureTopic "ensure_topic",
    /// [`EventLog::append`](photon_core::store::EventLog::append).
    Append "append",
    /// [`EventLog::read`](photon_core::store::EventLog::read).
    Read "read",
    /// [`EventLog::bounds`](photon_core::store::EventLog::bounds).
    Bounds "bounds",
    /// [`EventLog::position_at`](photon_core::store::EventLog::position_at).
    PositionAt "position_at",
    /// [`EventLog::announce_trim`](photon_core::store::EventLog::announce_trim).
    AnnounceTrim "announce_trim",
    /// [`EventLog::trim`](photon_core::store::EventLog::trim).
    Trim "trim",
    /// [`Checkpoints::register`](photon_core::store::Checkpoints::register).
    Register "register",
    /// [`Checkpoints::load`](photon_core::store::Checkpoints::load).
    Load "load",
    /// [`Checkpoints::commit`](photon_core::store::Checkpoints::commit).
    Commit "commit",
    /// [`Checkpoints::reset`](photon_core::store::Checkpoints::reset).
    Reset "reset",
    /// [`Checkpoints::pause`](photon_core::store::Checkpoints::pause).
    Pause "pause",
    /// [`Checkpoints::paused`](photon_core::store::Checkpoints::paused).
    Paused "paused",
    /// [`Checkpoints::list`](photon_core::store::Checkpoints::list).
    List "list",
    /// [`Checkpoints::forget`](photon_core::store::Checkpoints::forget).
    Forget "forget",
    /// [`Sideline::heads`](photon_core::store::Sideline::heads).
    Heads "heads",
    /// [`Sideline::lane`](photon_core::store::Sideline::lane).
    Lane "lane",
    /// [`Sideline::rows_in`](photon_core::store::Sideline::rows_in).
    RowsIn "rows_in",
    /// [`Sideline::get`](photon_core::store::Sideline::get).
    Get "get",
    /// [`Sideline::scan`](photon_core::store::Sideline::scan).
    Scan "scan",
    /// [`Sideline::count`](photon_core::store::Sideline::count).
    Count "count",
    /// [`Sideline::redrive`](photon_core::store::Sideline::redrive).
    Redrive "redrive",
    /// [`Sideline::discard`](photon_core::store::Sideline::discard).
    Discard "discard",
    /// [`Sideline::revision`](photon_core::store::Sideline::revision).
    Revision "revision",
    /// [`Leases::join`](photon_core::store::Leases::join).
    Join "join",
    /// [`Leases::heartbeat`](photon_core::store::Leases::heartbeat).
    Heartbeat "heartbeat",
    /// [`Leases::claim`](photon_core::store::Leases::claim).
    Claim "claim",
    /// [`Leases::release`](photon_core::store::Leases::release).
    Release "release",
    /// [`Leases::leave`](photon_core::store::Leases::leave).
    Leave "leave",
    /// [`Leases::holders`](photon_core::store::Leases::holders).
    Holders "holders",
    /// [`Leases::members`](photon_core::store::Leases::members).
    Members "members",
}

impl Op {
    /// Whether it can change what is stored.
    pub fn writes(self) -> bool {
        matches!(
            self,
            Op::EnsureTopic
                | Op::Append
                | Op::AnnounceTrim
                | Op::Trim
                | Op::Register
                | Op::Commit
                | Op::Reset
                | Op::Pause
                | Op::Forget
                | Op::Redrive
                | Op::Discard
                | Op::Join
                | Op::Heartbeat
                | Op::Claim
                | Op::Release
                | Op::Leave
        )
    }
}

impl fmt::Display for Op {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A call of a store: which method, about what.
#[derive(Debug, Clone, Copy)]
pub struct Call<'a> {
    /// The method.
    pub op: Op,
    /// The topic, where there is one.
    pub topic: Option<&'a TopicName>,
    /// The subscription, where there is one.
    pub subscription: Option<&'a SubscriptionId>,
    /// The shard, where there is one.
    pub shard: Option<Shard>,
    /// The member that calls, where there is one.
    pub member: Option<Incarnation>,
    /// How many things it is about, where it takes a list: events, cursors, shards, places, claims.
    pub items: Option<usize>,
}

impl<'a> Call<'a> {
    pub(super) fn plain(op: Op) -> Self {
        Self { op, topic: None, subscription: None, shard: None, member: None, items: None }
    }

    pub(super) fn topic(op: Op, topic: &'a TopicName) -> Self {
        Self { topic: Some(topic), ..Self::plain(op) }
    }

    pub(super) fn subscription(op: Op, subscription: &'a SubscriptionId) -> Self {
        Self { topic: Some(&subscription.topic), subscription: Some(subscription), ..Self::plain(op) }
    }

    pub(super) fn member(op: Op, incarnation: Incarnation) -> Self {
        Self { member: Some(incarnation), ..Self::plain(op) }
    }

    pub(super) fn shard(self, shard: Shard) -> Self {
        Self { shard: Some(shard), ..self }
    }

    pub(super) fn items(self, items: usize) -> Self {
        Self { items: Some(items), ..self }
    }
}

/// In one line: `commit orders/billing [2]`.
impl fmt::Display for Call<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.op)?;
        match (self.subscription, self.topic, self.member) {
            (Some(subscription), ..) => write!(f, " {subscription}")?,
            (None, Some(topic), _) => write!(f, " {topic}")?,
            (None, None, Some(member)) => write!(f, " {member}")?,
            (None, None, None) => {}
        }
        if let Some(shard) = self.shard {
            write!(f, " shard {shard}")?;
        }
        if let Some(items) = self.items {
            write!(f, " [{items}]")?;
        }
        Ok(())
    }
}
