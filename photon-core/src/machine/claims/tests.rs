//! Single answers and reports; whole lives of instances are in `tests/ownership.rs`.

use super::*;
use crate::ids::{GroupName, TopicName};
use uuid::Uuid;

const TTL: Duration = Duration::from_secs(5);

fn incarnation(n: u128) -> Incarnation {
    Incarnation(Uuid::from_u128(n))
}

fn fence(epoch: u64, n: u128) -> Fence {
    Fence { epoch, token: incarnation(n) }
}

fn joined() -> Claims {
    let id = SubscriptionId::new(TopicName::new("t").unwrap(), GroupName::new("g").unwrap());
    let mut claims = Claims::new(id, [Shard(0), Shard(1)], TTL);
    assert_eq!(claims.poll_claims(Mono(0)), None, "not a member yet");
    claims.handle_joined(incarnation(1), Mono(0));
    claims
}

fn asked(claims: &mut Claims, now: Mono) -> Vec<u16> {
    claims.poll_claims(now).into_iter().flatten().map(|claim| claim.shard.shard.0).collect()
}

fn grant(shard: u16, fence: Fence) -> (Shard, Answer) {
    (Shard(shard), Answer::Granted(fence))
}

/// Both shards are held under epoch 1.
fn holding() -> Claims {
    let mut claims = joined();
    assert_eq!(asked(&mut claims, Mono(0)), [0, 1]);
    assert_eq!(asked(&mut claims, Mono(0)), [0u16; 0], "in flight");
    claims.handle_answers(incarnation(1), [grant(0, fence(1, 1)), grant(1, fence(1, 1))], Mono(0));
    let both = vec![(Shard(0), fence(1, 1)), (Shard(1), fence(1, 1))];
    assert_eq!(claims.poll_change(), Some(Change::Assigned(both)));
    assert_eq!(claims.poll_change(), None);
    claims
}

#[test]
fn what_is_held_is_compared_with_the_store_from_time_to_time() {
    let mut claims = holding();
    let verify = Mono(0) + TTL * 2;
    assert_eq!(claims.next_wake(), Some(verify));
    assert_eq!(asked(&mut claims, verify - Duration::from_micros(1)), [0u16; 0]);
    assert_eq!(asked(&mut claims, verify), [0, 1]);
    claims.handle_answers(incarnation(1), [grant(0, fence(1, 1)), grant(1, fence(2, 1))], verify);
    assert_eq!(claims.poll_change(), Some(Change::Lost(vec![Shard(1)])));
    assert_eq!(claims.poll_change(), Some(Change::Assigned(vec![(Shard(1), fence(2, 1))])));
    assert_eq!(claims.poll_change(), None);
}

#[test]
fn a_fenced_shard_is_claimed_again_at_once() {
    let mut claims = holding();
    claims.handle_fenced(Shard(1), fence(7, 1), Mono(10));
    assert_eq!(claims.poll_change(), None, "a report about another fence");
    claims.handle_fenced(Shard(1), fence(1, 1), Mono(10));
    assert_eq!(claims.poll_change(), Some(Change::Lost(vec![Shard(1)])));
    assert_eq!(asked(&mut claims, Mono(10)), [1]);
}

#[test]
fn p09_an_answer_to_an_earlier_incarnation_counts_for_nothing() {
    let mut claims = joined();
    assert_eq!(asked(&mut claims, Mono(0)), [0, 1]);
    claims.handle_joined(incarnation(2), Mono(5));
    claims.handle_answers(incarnation(1), [grant(0, fence(1, 1))], Mono(6));
    assert_eq!(claims.poll_change(), None);
    assert_eq!(claims.held().count(), 0);
    assert_eq!(asked(&mut claims, Mono(6)), [0, 1], "asked anew");
}

#[test]
fn a_new_incarnation_loses_what_the_old_one_held() {
    let mut claims = holding();
    claims.handle_joined(incarnation(1), Mono(5));
    assert_eq!(claims.poll_change(), None, "nothing new");
    claims.handle_joined(incarnation(2), Mono(5));
    assert_eq!(claims.poll_change(), Some(Change::Lost(vec![Shard(0), Shard(1)])));
    claims.handle_left();
    assert_eq!((claims.poll_change(), claims.next_wake()), (None, None));
}

#[test]
fn what_was_released_is_not_claimed_again() {
    let mut claims = holding();
    claims.handle_released(&[Shard(0)]);
    assert_eq!(asked(&mut claims, Mono(0) + TTL * 2), [1]);
    // An answer that crossed the release.
    claims.handle_answers(incarnation(1), [grant(0, fence(1, 1)), grant(1, fence(1, 1))], Mono(0));
    assert_eq!(claims.poll_change(), None);
    claims.handle_released(&[Shard(1)]);
    assert_eq!(claims.next_wake(), None);
}

#[test]
fn p10_failed_claims_wait_and_hold_on_to_what_is_held() {
    let mut claims = holding();
    let verify = Mono(0) + TTL * 2;
    assert_eq!(asked(&mut claims, verify), [0, 1]);
    assert!(claims.handle_failed(verify), "the first failure is said");
    assert!(!claims.handle_failed(verify), "each end is reported once");
    assert_eq!(claims.next_wake(), Some(verify + Outage::FIRST_WAIT));
    assert_eq!(asked(&mut claims, verify), [0u16; 0]);
    assert_eq!(claims.held().count(), 2);
    let now = verify + Outage::FIRST_WAIT;
    assert_eq!(asked(&mut claims, now), [0, 1]);
    let both = [grant(0, fence(1, 1)), grant(1, fence(1, 1))];
    assert_eq!(claims.handle_answers(incarnation(1), both, now), Some(Outage::FIRST_WAIT));
    assert_eq!(claims.poll_change(), None);
}
