//! Histories that the simulation found, in the shortest form that shows the fault.

use super::*;

impl World {
    /// A process that finds these rows of key 1 and this checkpoint in the store.
    fn found(checkpoint: Checkpoint, rows: &[u64]) -> Self {
        let mut world = World::new(OnDead::Continue, false, false);
        // Room to load several rows at once.
        world.settings.prefetch = 16;
        for _ in 0..3 {
            world.store.append(Some(1), 1);
        }
        world.store.checkpoint = checkpoint;
        for seq in rows {
            let event = world.store.log[usize::try_from(*seq).unwrap() - 1].clone();
            let row = StoredDelivery {
                event,
                state: RowState::Parked { due: Timestamp(0) },
                attempts: 0,
                failure: Failure::default(),
                version: 1,
            };
            world.store.rows.insert(Seq(*seq), row);
        }
        world.start(false);
        world
    }

    fn all(&mut self, ops: &[Op]) {
        for op in ops {
            self.apply(*op);
        }
    }

    fn running(&self) -> Vec<u64> {
        self.running.iter().map(|(_, event)| event.seq.0).collect()
    }
}

fn covered(watermark: u64, ranges: &[(u64, u64)]) -> Checkpoint {
    let range = |(first, last): &(u64, u64)| SeqRange { first: Seq(*first), last: Seq(*last) };
    Checkpoint { watermark: Seq(watermark), ranges: ranges.iter().map(range).collect() }
}

const DONE: Op = Op::Finish { pick: 0, how: 0 };
const FOR_LONG: Op = Op::Finish { pick: 0, how: 14 };
const READ: Op = Op::Read { fails: false };
const LOADED: Op = Op::LoadEnds { fails: false };
const WRITTEN: Op = Op::CommitEnds { how: 7 };

/// The shard is lost while rows are loaded, and comes back: the late answer is not that of the new question.
#[test]
fn p03_a_late_answer_to_a_load_of_an_earlier_ownership_does_not_count() {
    let mut world = World::found(covered(1, &[]), &[1]);
    let early = world.machine.poll_load().expect("the row can run");
    let late_rows = world.store.lane(&early);
    world.machine.handle_lost(SHARD);
    let (fence, start) = world.store.start(false);
    world.machine.handle_assigned(SHARD, fence, start, world.now);

    // Neither before the new owner asked nor after.
    world.machine.handle_loaded(&early, Some(late_rows.clone()), world.now);
    assert!(world.machine.poll_dispatch(world.now).is_none(), "rows of an earlier ownership run");
    let load = world.machine.poll_load().expect("the new owner asks for itself");
    assert_ne!(load, early);
    world.machine.handle_loaded(&early, Some(late_rows), world.now);
    assert!(world.machine.poll_dispatch(world.now).is_none(), "rows of an earlier ownership run");

    let rows = world.store.lane(&load);
    world.machine.handle_loaded(&load, Some(rows), world.now);
    let dispatch = world.machine.poll_dispatch(world.now).expect("it was asked for");
    assert_eq!(dispatch.event.seq, Seq(1));
    assert!(world.machine.poll_dispatch(world.now).is_none());
}

/// An engine without transactions writes the checkpoint before the ends of rows: what is read from the log must not
/// be durably ended while the row before it is not.
#[test]
fn p03_a_delivery_from_the_log_waits_until_the_end_of_the_row_before_it_is_written() {
    let mut world = World::found(covered(1, &[]), &[1]);
    world.all(&[Op::Load, LOADED, READ, Op::ReadEnds, Op::Dispatch]);
    assert_eq!(world.running(), [1]);
    world.all(&[DONE, Op::Dispatch]);
    assert_eq!(world.running(), [0u64; 0], "2 runs before the end of 1 is written");
    // The checkpoint is written, the end of the row is not, and the process crashes.
    world.all(&[Op::Commit, Op::CommitEnds { how: 2 }, Op::Dispatch]);
    assert_eq!(world.running(), [0u64; 0], "2 runs before the end of 1 is written");
    world.apply(Op::Crash);
    world.settle_down();
    assert_eq!(world.done, [1, 1, 2, 3]);
    world.check_end();
}

/// All above the watermark was settled by an earlier owner: it comes up to the end without anything new.
#[test]
fn p02_a_watermark_catches_up_without_new_events() {
    let mut world = World::found(covered(0, &[(1, 3)]), &[]);
    world.all(&[READ, Op::ReadEnds, READ, Op::ReadEnds, READ, Op::ReadEnds]);
    world.all(&[Op::Advance { millis: 1_000 }, Op::Commit, WRITTEN]);
    assert!(world.done.is_empty(), "{:?}", world.done);
    assert_eq!(world.store.checkpoint.watermark, Seq(3), "the watermark stayed behind");
}

/// What is parked for long is not forgotten behind what is loaded before it.
#[test]
fn p03_a_row_parked_for_long_blocks_what_was_loaded_behind_it() {
    let mut world = World::found(covered(3, &[]), &[1, 2, 3]);
    world.all(&[Op::Load, LOADED, Op::Dispatch, FOR_LONG, Op::Dispatch, Op::Commit, WRITTEN]);
    world.all(&[Op::Load, LOADED, Op::Dispatch]);
    assert_eq!(world.running(), [0u64; 0], "2 runs while 1 is parked");
    world.settle_down();
    assert_eq!(world.done, [1, 2, 3]);
    world.check_end();
}
