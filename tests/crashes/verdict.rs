//! What the lines say about the promises.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fmt;

use crate::journal::{Line, What, by_lane};
use crate::worker::{CHECKPOINT_EVERY, CONCURRENCY, GROUPS};

/// What one crash may repeat in one subscription.
const BOUND: u64 = 4 * CHECKPOINT_EVERY + CONCURRENCY;
/// How many violations of one kind are shown.
const SHOWN: usize = 10;

/// How a process ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Ending {
    Killed,
    Clean,
}

/// Everything that is known.
pub(crate) struct Facts {
    /// Events that the test published.
    pub(crate) published: Vec<u64>,
    pub(crate) lines: Vec<Line>,
    /// Dead letters: group and event.
    pub(crate) dead: Vec<(&'static str, u64)>,
    /// By the number of the process.
    pub(crate) endings: Vec<Ending>,
}

/// What came out.
#[derive(Debug, Default)]
pub(crate) struct Report {
    killed: usize,
    clean: usize,
    events: usize,
    runs: usize,
    dead: usize,
    repeated: u64,
    most_repeated: u64,
    lost: Vec<String>,
    inverted: Vec<String>,
    overlapping: Vec<String>,
    too_many: Vec<String>,
}

impl Facts {
    /// How many deliveries of events that were published with success are not settled.
    pub(crate) fn open(&self) -> usize {
        self.lost().len()
    }

    pub(crate) fn judge(&self) -> Report {
        let killed = self.endings.iter().filter(|ending| **ending == Ending::Killed).count();
        let mut report = Report {
            killed,
            clean: self.endings.len() - killed,
            events: self.acknowledged().len(),
            runs: self.lines.iter().filter(|line| line.what == What::Start).count(),
            dead: self.dead.len(),
            lost: self.lost(),
            ..Report::default()
        };
        for ((group, key), lines) in by_lane(&self.lines) {
            let name = format!("{group}/{key}");
            report.inverted.extend(inversion(&name, "first", &first_ends(&lines)));
            report.inverted.extend(inversion(&name, "last", &last_ends(&lines)));
            report.overlapping.extend(self.overlaps(&name, &lines));
        }
        self.count_repeated(&mut report);
        report
    }

    fn acknowledged(&self) -> BTreeSet<u64> {
        let by_workers = self.lines.iter().filter(|line| line.what == What::Published).map(|line| line.event);
        self.published.iter().copied().chain(by_workers).collect()
    }

    fn lost(&self) -> Vec<String> {
        let mut settled: BTreeSet<(&str, u64)> = self.dead.iter().copied().collect();
        settled.extend(ends(&self.lines).map(|line| (&*line.group, line.event)));
        let acknowledged = self.acknowledged();
        let all = GROUPS.iter().flat_map(|group| acknowledged.iter().map(move |event| (*group, *event)));
        all.filter(|delivery| !settled.contains(delivery))
            .map(|(group, event)| format!("{group}: event {event}"))
            .collect()
    }

    /// Runs of a key that began while another one ran in a process that was not killed before.
    fn overlaps(&self, name: &str, lines: &[&Line]) -> Vec<String> {
        let mut found = Vec::new();
        let mut running: Option<&Line> = None;
        for line in lines {
            match (line.what, running) {
                (What::Start, Some(other)) if other.life == line.life && other.epoch == line.epoch => {
                    found.push(format!("{name}: {} starts while {} runs", line.seq, other.seq));
                }
                (What::Start, Some(other)) if self.endings[other.life as usize] == Ending::Clean => {
                    found.push(format!("{name}: {} of a clean process has no end", other.seq));
                }
                // Of a process that was killed while it ran.
                _ => {}
            }
            running = (line.what == What::Start).then_some(*line);
        }
        found
    }

    /// Counts good ends that were followed by another one, for the process of the former.
    fn count_repeated(&self, report: &mut Report) {
        let mut last: HashMap<(&str, u64), u32> = HashMap::new();
        let mut repeated: BTreeMap<(u32, &str), u64> = BTreeMap::new();
        for line in ends(&self.lines) {
            if let Some(life) = last.insert((&line.group, line.event), line.life) {
                *repeated.entry((life, &line.group)).or_default() += 1;
                report.repeated += 1;
            }
        }
        for ((life, group), count) in repeated {
            let allowed = match self.endings[life as usize] {
                Ending::Killed => BOUND,
                Ending::Clean => 0,
            };
            report.most_repeated = report.most_repeated.max(count);
            if count > allowed {
                report.too_many.push(format!("{group}: {count} of process {life}, allowed {allowed}"));
            }
        }
    }
}

fn ends(lines: &[Line]) -> impl Iterator<Item = &Line> {
    lines.iter().filter(|line| line.what == What::Done)
}

/// The places in the order of their first good ends.
fn first_ends(lines: &[&Line]) -> Vec<u64> {
    let mut seen = BTreeSet::new();
    let done = lines.iter().filter(|line| line.what == What::Done);
    done.map(|line| line.seq).filter(|seq| seen.insert(*seq)).collect()
}

/// The places in the order of their last good ends.
fn last_ends(lines: &[&Line]) -> Vec<u64> {
    let reversed: Vec<&Line> = lines.iter().rev().copied().collect();
    let mut places = first_ends(&reversed);
    places.reverse();
    places
}

fn inversion(name: &str, which: &str, places: &[u64]) -> Option<String> {
    let at = places.windows(2).find(|pair| pair[0] > pair[1])?;
    Some(format!("{name}: by the {which} good ends {} comes before {}", at[0], at[1]))
}

impl Report {
    pub(crate) fn is_good(&self) -> bool {
        [&self.lost, &self.inverted, &self.overlapping, &self.too_many].iter().all(|found| found.is_empty())
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} processes killed, {} ended cleanly, {} events, {} runs, {} dead letters, {} good ends repeated, at most {} by one crash in one \
             subscription (bound {BOUND}); lost {}, order inverted {}, overlapping {}, over the bound {}",
            self.killed,
            self.clean,
            self.events,
            self.runs,
            self.dead,
            self.repeated,
            self.most_repeated,
            self.lost.len(),
            self.inverted.len(),
            self.overlapping.len(),
            self.too_many.len()
        )?;
        for found in [&self.lost, &self.inverted, &self.overlapping, &self.too_many] {
            for violation in found.iter().take(SHOWN) {
                write!(f, "\n  {violation}")?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Runs of one key in one subscription: what, process, seq. The event of seq 5 has the id 5.
    fn judge(endings: &[Ending], runs: &[(What, u32, u64)]) -> Report {
        let line = |&(what, life, seq): &(What, u32, u64)| Line {
            what,
            life,
            group: "steady".to_owned(),
            key: "k".to_owned(),
            shard: 0,
            seq,
            event: seq,
            epoch: 1,
        };
        let facts = Facts {
            published: Vec::new(),
            lines: runs.iter().map(line).collect(),
            dead: Vec::new(),
            endings: endings.to_vec(),
        };
        facts.judge()
    }

    fn good(life: u32, seqs: &[u64]) -> Vec<(What, u32, u64)> {
        seqs.iter().flat_map(|seq| [(What::Start, life, *seq), (What::Done, life, *seq)]).collect()
    }

    const KILLED: [Ending; 2] = [Ending::Killed; 2];

    #[test]
    fn p03_a_key_repeats_from_an_earlier_point_but_always_forward() {
        let runs = |first: &[u64], second: &[u64]| [good(0, first), good(1, second)].concat();
        assert!(judge(&KILLED, &runs(&[5, 6], &[5, 6])).is_good());
        assert_eq!(judge(&KILLED, &runs(&[5, 6], &[5])).inverted.len(), 1);
        assert_eq!(judge(&KILLED, &runs(&[6], &[5, 6])).inverted.len(), 1);
        assert_eq!(judge(&KILLED, &runs(&[5, 6, 7], &[5, 7])).inverted.len(), 1);
    }

    #[test]
    fn p03_runs_of_a_key_do_not_overlap() {
        let start = |life, seq| (What::Start, life, seq);
        assert_eq!(judge(&KILLED, &[start(0, 5), start(0, 6)]).overlapping.len(), 1);
        assert!(judge(&KILLED, &[start(0, 5), start(1, 5)]).is_good());
        let clean = [Ending::Clean, Ending::Killed];
        assert_eq!(judge(&clean, &[start(0, 5), start(1, 5)]).overlapping.len(), 1);
    }

    #[test]
    fn p04_repetitions_are_counted_for_the_process_that_ended() {
        let many: Vec<u64> = (1..=BOUND + 1).collect();
        let within = [good(0, &many[1..]), good(1, &many[1..])].concat();
        assert!(judge(&KILLED, &within).is_good());
        let over = [good(0, &many), good(1, &many)].concat();
        assert_eq!(judge(&KILLED, &over).too_many.len(), 1);
        let after_clean = [good(0, &[1]), good(1, &[1])].concat();
        assert_eq!(judge(&[Ending::Clean, Ending::Killed], &after_clean).too_many.len(), 1);
    }

    #[test]
    fn p01_what_was_published_and_never_ended_is_lost() {
        let facts = |dead| Facts { published: vec![1], lines: Vec::new(), dead, endings: Vec::new() };
        assert_eq!(facts(Vec::new()).open(), GROUPS.len());
        assert_eq!(facts(GROUPS.map(|group| (group, 1)).to_vec()).open(), 0);
    }
}
