//! Stored deliveries as rows.

use std::collections::HashMap;

use bytes::Bytes;
use photon_core::envelope::{HeadersDecoder, encode_headers};
use photon_core::error::StoreError;
use photon_core::event::Event;
use photon_core::handler::DeadReason;
use photon_core::ids::{EventId, Seq, Shard, TopicName};
use photon_core::store::{Failure, Lane, RowState, StoredDelivery};
use photon_core::time::Timestamp;
use tokio_postgres::{Client, Row};
use uuid::Uuid;

use super::error::{Target, Trouble};
use super::log::shard;
use super::param::params;
use super::read::{number, seq};
use super::schema::Schema;

/// The columns that [`RowReader::read`] takes, in its order.
macro_rules! columns {
    () => {
        "shard, seq, version, state, due, attempts, lane, reason, first_failed, last_failed, \
         deferred_since, time, id, error, headers, payload"
    };
}
pub(super) use columns;

/// The state of a row that ended and that no checkpoint covers yet.
pub(super) const MARK: i32 = 4;

/// Whether a row in this state takes part in the order of its lane; what the index `delivery_live` holds.
pub(super) fn is_live(state: i32) -> bool {
    matches!(state, 0 | 1 | 3)
}

fn encode_state(state: RowState) -> (i32, Option<i64>) {
    match state {
        RowState::Parked { due } => (0, Some(due.0)),
        RowState::Waiting => (1, None),
        RowState::Dead { blocks: false } => (2, None),
        RowState::Dead { blocks: true } => (3, None),
    }
}

/// The number that stands for a state.
pub(super) fn state_number(state: RowState) -> i32 {
    encode_state(state).0
}

/// Reads a state; `None` for a mark, or for a number that is no state.
pub(super) fn decode_state(state: i32, due: Option<i64>) -> Option<RowState> {
    match state {
        0 => Some(RowState::Parked { due: Timestamp(due.unwrap_or(0)) }),
        1 => Some(RowState::Waiting),
        2 => Some(RowState::Dead { blocks: false }),
        3 => Some(RowState::Dead { blocks: true }),
        _ => None,
    }
}

pub(super) fn strange(target: &Target, what: impl std::fmt::Display) -> StoreError {
    target.strange(format!("the stored delivery {what}"))
}

/// Reads rows of one subscription.
pub(super) struct RowReader<'a> {
    target: &'a Target,
    topic: &'a TopicName,
    headers: HeadersDecoder,
}

impl<'a> RowReader<'a> {
    pub(super) fn new(target: &'a Target, topic: &'a TopicName) -> Self {
        Self { target, topic, headers: HeadersDecoder::default() }
    }

    pub(super) fn read_all(mut self, rows: &[Row]) -> Result<Vec<StoredDelivery>, Trouble> {
        rows.iter().map(|row| self.read(row)).collect()
    }

    fn read(&mut self, row: &Row) -> Result<StoredDelivery, Trouble> {
        let (shard, seq) = (shard(row.try_get(0)?), seq(row.try_get(1)?));
        let bad = || strange(self.target, format!("of {}/{shard} at {seq}", self.topic));
        let state = decode_state(row.try_get(3)?, row.try_get(4)?).ok_or_else(bad)?;
        let lane = Lane::from_bytes(row.try_get(6)?).ok_or_else(bad)?;
        let headers = self.headers.decode(row.try_get(14)?).map_err(|error| bad().with_source(error))?;
        let reason: Option<&str> = row.try_get(7)?;
        let time = |column| row.try_get::<_, Option<i64>>(column).map(|time| time.map(Timestamp));
        let (version, attempts): (i64, i64) = (row.try_get(2)?, row.try_get(5)?);
        Ok(StoredDelivery {
            event: Event {
                id: EventId(row.try_get(12)?),
                topic: self.topic.clone(),
                shard,
                seq,
                key: match lane {
                    Lane::Key(key) => Some(key),
                    Lane::Single(_) => None,
                },
                headers,
                payload: Bytes::copy_from_slice(row.try_get(15)?),
                time: Timestamp(row.try_get(11)?),
            },
            state,
            attempts: u32::try_from(attempts).unwrap_or(u32::MAX),
            failure: Failure {
                error: String::from_utf8_lossy(row.try_get(13)?).into_owned(),
                reason: reason.and_then(DeadReason::from_name),
                first_failed: time(8)?,
                last_failed: time(9)?,
                deferred_since: time(10)?,
            },
            version: version.unsigned_abs(),
        })
    }
}

/// Where a row lies within a subscription.
pub(super) type Place = (Shard, Seq);

/// What is known of a row that is there.
#[derive(Debug, Clone)]
pub(super) struct Known {
    pub(super) version: u64,
    pub(super) state: i32,
    pub(super) lane: Vec<u8>,
}

/// Places as columns.
#[derive(Default)]
struct Columns {
    shards: Vec<i32>,
    seqs: Vec<i64>,
}

impl Columns {
    fn new(places: impl IntoIterator<Item = Place>) -> Self {
        let mut columns = Self::default();
        for (shard, seq) in places {
            columns.shards.push(i32::from(shard.0));
            columns.seqs.push(number(seq));
        }
        columns
    }
}

/// What is known of the rows at these places. Whoever changes them holds the checkpoint.
pub(super) async fn known(
    client: &Client,
    schema: &Schema,
    subscription: i64,
    places: impl IntoIterator<Item = Place>,
) -> Result<HashMap<Place, Known>, Trouble> {
    let columns = Columns::new(places);
    if columns.shards.is_empty() {
        return Ok(HashMap::new());
    }
    let statement = "SELECT d.shard, d.seq, d.version, d.state, d.lane
                     FROM unnest($2, $3) u(shard, seq) JOIN @delivery d
                         ON d.subscription = $1 AND d.shard = u.shard AND d.seq = u.seq";
    let parameters = params![subscription, columns.shards, columns.seqs];
    let rows = client.query_typed(&schema.sql(statement), parameters).await?;
    rows.iter()
        .map(|row| {
            let version: i64 = row.try_get(2)?;
            let lane: Option<Vec<u8>> = row.try_get(4)?;
            let known = Known {
                version: version.unsigned_abs(),
                state: row.try_get(3)?,
                lane: lane.unwrap_or_default(),
            };
            Ok(((shard(row.try_get(0)?), seq(row.try_get(1)?)), known))
        })
        .collect()
}

/// What becomes of rows, gathered to be written together.
#[derive(Default)]
pub(super) struct Changes<'a> {
    puts: HashMap<Place, (&'a StoredDelivery, u64)>,
    removed: Vec<Place>,
    marked: Vec<Place>,
    redriven: Vec<Place>,
    /// How many live rows more a lane has.
    lanes: HashMap<(Shard, Vec<u8>), i64>,
}

impl<'a> Changes<'a> {
    /// The row is there, whole, with this version.
    pub(super) fn put(&mut self, row: &'a StoredDelivery, version: u64) {
        self.puts.insert((row.event.shard, row.event.seq), (row, version));
    }

    /// The row ends: it goes, or stays as a mark if no checkpoint covers it.
    pub(super) fn close(&mut self, place: Place, is_covered: bool) {
        if is_covered { self.removed.push(place) } else { self.marked.push(place) }
    }

    /// The dead row becomes one that is parked and due.
    pub(super) fn redrive(&mut self, place: Place) {
        self.redriven.push(place);
    }

    /// A row of the lane became live, or is not any more.
    pub(super) fn count(&mut self, shard: Shard, lane: &[u8], was_live: bool, is_live: bool) {
        let more = i64::from(is_live) - i64::from(was_live);
        if more != 0 {
            *self.lanes.entry((shard, lane.to_vec())).or_default() += more;
        }
    }

    /// Writes them. The statements go out together.
    pub(super) async fn write(
        self,
        client: &Client,
        schema: &Schema,
        subscription: i64,
    ) -> Result<(), Trouble> {
        if !self.puts.is_empty() {
            write_puts(client, schema, subscription, &self.puts).await?;
        }
        for (places, statement) in [
            (
                self.removed,
                "DELETE FROM @delivery d USING unnest($2, $3) u(shard, seq)
                 WHERE d.subscription = $1 AND d.shard = u.shard AND d.seq = u.seq",
            ),
            (
                self.marked,
                "UPDATE @delivery d SET state = 4, version = version + 1, due = NULL, lane = NULL, lane_id = NULL,
                     reason = NULL, first_failed = NULL, last_failed = NULL, deferred_since = NULL, time = NULL,
                     id = NULL, error = NULL, headers = NULL, payload = NULL
                 FROM unnest($2, $3) u(shard, seq)
                 WHERE d.subscription = $1 AND d.shard = u.shard AND d.seq = u.seq",
            ),
            (
                self.redriven,
                "UPDATE @delivery d SET state = 0, due = @now(), attempts = 0, version = version + 1, reason = NULL,
                     first_failed = NULL, deferred_since = NULL
                 FROM unnest($2, $3) u(shard, seq)
                 WHERE d.subscription = $1 AND d.shard = u.shard AND d.seq = u.seq",
            ),
        ] {
            if !places.is_empty() {
                let columns = Columns::new(places);
                let parameters = params![subscription, columns.shards, columns.seqs];
                client.execute_typed(&schema.sql(statement), parameters).await?;
            }
        }
        write_lanes(client, schema, subscription, self.lanes).await
    }
}

async fn write_puts(
    client: &Client,
    schema: &Schema,
    subscription: i64,
    puts: &HashMap<Place, (&StoredDelivery, u64)>,
) -> Result<(), Trouble> {
    let rows = || puts.values().map(|(row, _)| *row);
    let columns = Columns::new(puts.keys().copied());
    let versions: Vec<i64> =
        puts.values().map(|(_, version)| i64::try_from(*version).unwrap_or(i64::MAX)).collect();
    let (states, dues): (Vec<i32>, Vec<Option<i64>>) = rows().map(|row| encode_state(row.state)).unzip();
    let attempts: Vec<i64> = rows().map(|row| i64::from(row.attempts)).collect();
    let lanes: Vec<Vec<u8>> = rows().map(|row| row.lane().to_bytes()).collect();
    let reasons: Vec<Option<&str>> = rows().map(|row| row.failure.reason.map(DeadReason::as_str)).collect();
    let time = |time: Option<Timestamp>| time.map(|time| time.0);
    let first: Vec<Option<i64>> = rows().map(|row| time(row.failure.first_failed)).collect();
    let last: Vec<Option<i64>> = rows().map(|row| time(row.failure.last_failed)).collect();
    let deferred: Vec<Option<i64>> = rows().map(|row| time(row.failure.deferred_since)).collect();
    let times: Vec<i64> = rows().map(|row| row.event.time.0).collect();
    let ids: Vec<Uuid> = rows().map(|row| row.event.id.0).collect();
    let errors: Vec<&[u8]> = rows().map(|row| row.failure.error.as_bytes()).collect();
    let payloads: Vec<&[u8]> = rows().map(|row| &row.event.payload[..]).collect();
    let headers: Vec<Vec<u8>> = rows()
        .map(|row| {
            let mut headers = Vec::new();
            encode_headers(&row.event.headers, &mut headers);
            headers
        })
        .collect();
    let statement = concat!(
        "INSERT INTO @delivery (subscription, ",
        columns!(),
        ", lane_id)
         SELECT $1, u.*, @short(u.lane)
         FROM unnest($2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17) u(",
        columns!(),
        ")
         ON CONFLICT (subscription, shard, seq) DO UPDATE SET
             version = excluded.version, state = excluded.state, due = excluded.due,
             attempts = excluded.attempts, lane = excluded.lane, lane_id = excluded.lane_id,
             reason = excluded.reason, first_failed = excluded.first_failed,
             last_failed = excluded.last_failed, deferred_since = excluded.deferred_since,
             time = excluded.time, id = excluded.id, error = excluded.error,
             headers = excluded.headers, payload = excluded.payload"
    );
    let parameters = params![
        subscription,
        columns.shards,
        columns.seqs,
        versions,
        states,
        dues,
        attempts,
        lanes,
        reasons,
        first,
        last,
        deferred,
        times,
        ids,
        errors,
        headers,
        payloads
    ];
    client.execute_typed(&schema.sql(statement), parameters).await?;
    Ok(())
}

/// Brings the lanes in line with their rows, which are written already.
async fn write_lanes(
    client: &Client,
    schema: &Schema,
    subscription: i64,
    lanes: HashMap<(Shard, Vec<u8>), i64>,
) -> Result<(), Trouble> {
    let (mut shards, mut names, mut more) = (Vec::new(), Vec::new(), Vec::new());
    for ((shard, lane), count) in lanes {
        shards.push(i32::from(shard.0));
        names.push(lane);
        more.push(count);
    }
    if shards.is_empty() {
        return Ok(());
    }
    let gone = "DELETE FROM @lane l
                USING (SELECT u.shard, @short(u.lane) AS id FROM unnest($2, $3) u(shard, lane)) u
                WHERE l.subscription = $1 AND l.shard = u.shard AND l.lane_id = u.id
                    AND NOT EXISTS (SELECT FROM @delivery d WHERE d.subscription = $1 AND d.shard = u.shard
                                    AND d.lane_id = u.id AND d.state IN (0, 1, 3))";
    let live = "INSERT INTO @lane AS l (subscription, shard, lane_id, head, rows)
                SELECT $1, u.shard, u.id, d.seq, u.more
                FROM (SELECT u.shard, @short(u.lane) AS id, u.more FROM unnest($2, $3, $4) u(shard, lane, more)) u
                CROSS JOIN LATERAL (
                    SELECT d.seq FROM @delivery d WHERE d.subscription = $1 AND d.shard = u.shard
                        AND d.lane_id = u.id AND d.state IN (0, 1, 3) ORDER BY d.seq LIMIT 1) d
                ON CONFLICT (subscription, shard, lane_id)
                DO UPDATE SET head = excluded.head, rows = l.rows + excluded.rows";
    client.execute_typed(&schema.sql(gone), params![subscription, shards, names]).await?;
    client.execute_typed(&schema.sql(live), params![subscription, shards, names, more]).await?;
    Ok(())
}
