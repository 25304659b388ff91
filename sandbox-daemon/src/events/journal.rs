//! Numbers the denials of one run of the daemon, the uses of credentials and the
//! losses among them, keeps the latest and hands them to subscribers. Nobody who
//! reads slowly holds anything up: what does not fit a subscriber's queue is counted
//! and shown to it as lost.

use std::{
    collections::VecDeque,
    sync::{Arc, Mutex, MutexGuard, PoisonError, Weak},
    time::SystemTime,
};

use tokio::sync::Notify;

use super::{
    Denial, Owner,
    fold::Folded,
    used::{Request, Used},
};

/// Denials that wait for a subscriber.
const QUEUE: usize = 4096;

/// All denials since the daemon started.
pub struct Journal {
    epoch: String,
    inner: Mutex<Inner>,
}

struct Inner {
    /// The sequence that comes next.
    next: u64,
    /// The latest denials and losses, without a gap in their sequences.
    buffer: VecDeque<Recent>,
    capacity: usize,
    subscribers: Vec<Weak<Queue>>,
    closed: bool,
}

/// What the journal remembers.
struct Recent {
    owner: Arc<Owner>,
    item: Item,
}

/// What a subscriber gets.
#[derive(Clone, Debug)]
pub enum Item {
    /// Refusals.
    Denial(Arc<Denial>),
    /// Uses of a credential.
    Used(Arc<Used>),
    /// Refusals that have no denial, or uses that were not told.
    Lost(Loss),
}

/// Refusals that have no denial.
#[derive(Clone, Debug)]
pub struct Loss {
    /// Why not.
    pub reason: LossReason,
    /// How many.
    pub count: u64,
    /// Whose they are; `None`: of several sandboxes.
    pub owner: Option<Arc<Owner>>,
    /// Among those of denials; 0: this subscriber's own.
    pub sequence: u64,
}

/// Why a refusal has no denial.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LossReason {
    /// The exec was over its rate.
    Rate,
    /// The kernel's ring buffer was full.
    RingBuffer,
    /// The subscriber was too slow.
    Reader,
    /// They are no refusals but uses of credentials: the exec was over its rate
    /// with them, or the subscriber too slow.
    Use,
}

/// What a subscriber wants.
#[derive(Clone, Debug, Default)]
pub struct Filter {
    /// Of this user's sandboxes; `None`: of all.
    pub uid: Option<u32>,
    /// Of this sandbox.
    pub sandbox: Option<String>,
    /// Of this exec.
    pub exec: Option<String>,
}

impl Item {
    fn sequence(&self) -> u64 {
        match self {
            Self::Denial(denial) => denial.sequence,
            Self::Used(used) => used.sequence,
            Self::Lost(loss) => loss.sequence,
        }
    }

    /// Whether it is about uses of credentials.
    fn is_use(&self) -> bool {
        match self {
            Self::Denial(_) => false,
            Self::Used(_) => true,
            Self::Lost(loss) => loss.reason == LossReason::Use,
        }
    }
}

impl Filter {
    fn admits(&self, owner: &Owner) -> bool {
        self.uid.is_none_or(|uid| uid == owner.uid)
            && self.sandbox.as_ref().is_none_or(|id| *id == owner.sandbox)
            && self.exec.as_ref().is_none_or(|id| *id == owner.exec)
    }
}

/// Where a subscriber starts.
#[derive(Clone, Debug)]
pub enum Since {
    /// With what comes next.
    Now,
    /// With what the buffer still holds.
    Oldest,
    /// Behind this sequence of this epoch.
    After {
        /// Of the daemon's run.
        epoch: String,
        /// Of the last denial that was seen.
        sequence: u64,
    },
}

/// Why a subscriber cannot start where it wants to.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum ResumeError {
    /// The daemon was restarted since.
    #[error("epoch `{asked}` has ended, this one is `{current}`")]
    Epoch {
        /// What was asked for.
        asked: String,
        /// What there is.
        current: String,
    },
    /// The buffer holds later ones only, or it has not come yet.
    #[error("sequence {asked} is not in the buffer, which holds {first} to {last}")]
    Sequence {
        /// What was asked for.
        asked: u64,
        /// The oldest there is.
        first: u64,
        /// The latest there is.
        last: u64,
    },
}

impl Journal {
    /// An empty journal that keeps `capacity` denials and losses.
    #[must_use]
    pub fn new(epoch: String, capacity: usize) -> Self {
        Self {
            epoch,
            inner: Mutex::new(Inner {
                next: 1,
                buffer: VecDeque::new(),
                capacity: capacity.max(1),
                subscribers: Vec::new(),
                closed: false,
            }),
        }
    }

    /// Names this run of the daemon.
    pub fn epoch(&self) -> &str {
        &self.epoch
    }

    /// Numbers a denial and hands it out.
    pub fn publish(&self, owner: Arc<Owner>, folded: Folded) {
        let mut inner = self.lock();
        let denial = Arc::new(Denial {
            owner: owner.clone(),
            sequence: inner.next,
            first: folded.first,
            last: folded.last,
            count: folded.count,
            refusal: folded.refusal,
        });
        let count = denial.count;
        inner.add(owner, Item::Denial(denial), count);
    }

    /// Numbers uses of a credential and hands them out.
    pub(super) fn publish_use(&self, owner: Arc<Owner>, request: Request, count: u64) {
        let mut inner = self.lock();
        let used = Arc::new(Used {
            owner: owner.clone(),
            sequence: inner.next,
            time: SystemTime::now(),
            count,
            request,
        });
        inner.add(owner, Item::Used(used), count);
    }

    /// Numbers refusals that have no denial, and tells of them.
    pub fn lost(&self, owner: Arc<Owner>, reason: LossReason, count: u64) {
        if count == 0 {
            return;
        }
        let mut inner = self.lock();
        let loss = Loss {
            reason,
            count,
            owner: Some(owner.clone()),
            sequence: inner.next,
        };
        inner.add(owner, Item::Lost(loss), count);
    }

    /// Subscribes to what is published from here on.
    pub fn follow(&self, filter: Filter) -> Subscription {
        let mut inner = self.lock();
        let last = inner.next - 1;
        inner.subscribe(filter, last)
    }

    /// Subscribes to what is published from here on, and to what the buffer
    /// holds of what was before.
    pub fn subscribe(&self, filter: Filter, since: &Since) -> Result<Subscription, ResumeError> {
        let mut inner = self.lock();
        let last = inner.next - 1;
        let first = inner.next - inner.buffer.len() as u64;
        let after = match since {
            Since::Now => last,
            Since::Oldest => first - 1,
            Since::After { epoch, .. } if *epoch != self.epoch => {
                return Err(ResumeError::Epoch {
                    asked: epoch.clone(),
                    current: self.epoch.clone(),
                });
            }
            Since::After { sequence, .. } if *sequence < first - 1 || *sequence > last => {
                return Err(ResumeError::Sequence {
                    asked: *sequence,
                    first,
                    last,
                });
            }
            Since::After { sequence, .. } => *sequence,
        };
        Ok(inner.subscribe(filter, after))
    }

    /// Ends all subscriptions, once they have been read.
    pub fn close(&self) {
        let mut inner = self.lock();
        inner.closed = true;
        for queue in inner.subscribers.iter().filter_map(Weak::upgrade) {
            queue.lock().closed = true;
            queue.arrived.notify_one();
        }
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Inner {
    /// Takes the item that was given the next sequence.
    fn add(&mut self, owner: Arc<Owner>, item: Item, count: u64) {
        self.next += 1;
        self.each(&owner, |queue| queue.push(item.clone(), count));
        if self.buffer.len() == self.capacity {
            self.buffer.pop_front();
        }
        self.buffer.push_back(Recent { owner, item });
    }

    fn subscribe(&mut self, filter: Filter, after: u64) -> Subscription {
        let backlog = self
            .buffer
            .iter()
            .filter(|recent| recent.item.sequence() > after && filter.admits(&recent.owner))
            .map(|recent| recent.item.clone())
            .collect();
        let queue = Arc::new(Queue {
            filter,
            waiting: Mutex::new(Waiting {
                items: VecDeque::new(),
                lost: 0,
                uses: 0,
                closed: self.closed,
            }),
            arrived: Notify::new(),
        });
        self.subscribers.push(Arc::downgrade(&queue));
        Subscription {
            sequence: self.next - 1,
            backlog,
            queue,
        }
    }

    fn each(&mut self, owner: &Owner, push: impl Fn(&Queue)) {
        self.subscribers.retain(|queue| {
            let Some(queue) = queue.upgrade() else {
                return false;
            };
            if queue.filter.admits(owner) {
                push(&queue);
            }
            true
        });
    }
}

/// Items between the journal and one subscriber.
struct Queue {
    filter: Filter,
    waiting: Mutex<Waiting>,
    arrived: Notify,
}

struct Waiting {
    items: VecDeque<Item>,
    /// Refusals that did not fit behind the last item.
    lost: u64,
    /// Uses, likewise.
    uses: u64,
    closed: bool,
}

impl Queue {
    fn push(&self, item: Item, count: u64) {
        let mut waiting = self.lock();
        let owed = usize::from(waiting.lost > 0) + usize::from(waiting.uses > 0);
        if waiting.items.len() + owed >= QUEUE {
            let is_use = item.is_use();
            let waiting = &mut *waiting;
            *if is_use {
                &mut waiting.uses
            } else {
                &mut waiting.lost
            } += count;
        } else {
            waiting.own_up();
            waiting.items.push_back(item);
        }
        drop(waiting);
        self.arrived.notify_one();
    }

    fn lock(&self) -> MutexGuard<'_, Waiting> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Waiting {
    /// Puts what was lost where it was lost.
    fn own_up(&mut self) {
        for (reason, lost) in [
            (LossReason::Reader, &mut self.lost),
            (LossReason::Use, &mut self.uses),
        ] {
            if *lost > 0 {
                self.items.push_back(Item::Lost(Loss {
                    reason,
                    count: std::mem::take(lost),
                    owner: None,
                    sequence: 0,
                }));
            }
        }
    }
}

/// What one subscriber still has to read.
pub struct Subscription {
    /// The last sequence when it began.
    sequence: u64,
    backlog: VecDeque<Item>,
    queue: Arc<Queue>,
}

impl Subscription {
    /// The last sequence when it began.
    pub fn sequence(&self) -> u64 {
        self.sequence
    }

    /// The next of the items that were there when it began.
    pub fn history(&mut self) -> Option<Item> {
        self.backlog.pop_front()
    }

    /// The next item that is there.
    pub fn try_next(&mut self) -> Option<Item> {
        if let Some(item) = self.history() {
            return Some(item);
        }
        let mut waiting = self.queue.lock();
        if waiting.items.is_empty() {
            waiting.own_up();
        }
        waiting.items.pop_front()
    }

    /// The next item; `None` once the journal was closed. Loses nothing when
    /// it is cancelled.
    pub async fn next(&mut self) -> Option<Item> {
        loop {
            if let Some(item) = self.try_next() {
                return Some(item);
            }
            if self.queue.lock().closed {
                return None;
            }
            self.queue.arrived.notified().await;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::SystemTime;

    use super::{super::fold::tests::refusal, *};

    fn owner(uid: u32, sandbox: &str) -> Arc<Owner> {
        Arc::new(Owner {
            uid,
            sandbox: sandbox.into(),
            exec: format!("{sandbox}-exec"),
        })
    }

    fn publish(journal: &Journal, owner: &Arc<Owner>, path: &str) {
        let time = SystemTime::now();
        journal.publish(
            owner.clone(),
            Folded {
                refusal: Arc::new(refusal(path)),
                count: 1,
                first: time,
                last: time,
            },
        );
    }

    fn sequences(subscription: &mut Subscription) -> Vec<u64> {
        std::iter::from_fn(|| subscription.try_next())
            .map(|item| item.sequence())
            .collect()
    }

    fn after(sequence: u64) -> Since {
        Since::After {
            epoch: "e".into(),
            sequence,
        }
    }

    #[test]
    fn a_subscriber_sees_what_its_filter_admits() {
        let journal = Journal::new("e".into(), 10);
        let (own, other) = (owner(1000, "a"), owner(1001, "b"));
        let filter = Filter {
            uid: Some(1000),
            ..Filter::default()
        };
        let mut mine = journal.subscribe(filter, &Since::Now).unwrap();
        let mut all = journal.subscribe(Filter::default(), &Since::Now).unwrap();
        publish(&journal, &own, "/1");
        publish(&journal, &other, "/2");
        publish(&journal, &own, "/3");
        assert_eq!(sequences(&mut mine), [1, 3]);
        assert_eq!(sequences(&mut all), [1, 2, 3]);
    }

    #[test]
    fn a_subscriber_resumes_without_gap_or_repetition() {
        let journal = Journal::new("e".into(), 4);
        let own = owner(1000, "a");
        for i in 0..3 {
            publish(&journal, &own, &i.to_string());
        }
        let mut resumed = journal.subscribe(Filter::default(), &after(1)).unwrap();
        publish(&journal, &own, "/4");
        assert_eq!(sequences(&mut resumed), [2, 3, 4]);
        let mut oldest = journal
            .subscribe(Filter::default(), &Since::Oldest)
            .unwrap();
        assert_eq!(sequences(&mut oldest), [1, 2, 3, 4]);
    }

    #[test]
    fn resuming_beyond_the_buffer_is_an_error() {
        let journal = Journal::new("e".into(), 2);
        let own = owner(1000, "a");
        for i in 0..5 {
            publish(&journal, &own, &i.to_string());
        }
        let error = |from: &Since| journal.subscribe(Filter::default(), from).err();
        let gone = |asked| {
            Some(ResumeError::Sequence {
                asked,
                first: 4,
                last: 5,
            })
        };
        assert_eq!(error(&after(2)), gone(2));
        assert_eq!(error(&after(6)), gone(6));
        assert_eq!(error(&after(3)), None);
        assert_eq!(error(&after(5)), None);
        let other = Since::After {
            epoch: "x".into(),
            sequence: 4,
        };
        assert!(matches!(error(&other), Some(ResumeError::Epoch { .. })));
    }

    #[test]
    fn what_a_slow_reader_misses_is_counted_where_it_was_lost() {
        let journal = Journal::new("e".into(), 1);
        let own = owner(1000, "a");
        let mut slow = journal.subscribe(Filter::default(), &Since::Now).unwrap();
        let sent = QUEUE + 100;
        for _ in 0..sent {
            publish(&journal, &own, "/x");
        }
        let mut denials = 0;
        for _ in 0..10 {
            assert!(matches!(slow.try_next(), Some(Item::Denial(_))));
            denials += 1;
        }
        publish(&journal, &own, "/x");
        let (mut lost, mut last_was_denial) = (0, false);
        while let Some(item) = slow.try_next() {
            last_was_denial = matches!(item, Item::Denial(_));
            match item {
                Item::Denial(_) => denials += 1,
                Item::Used(_) => panic!("nothing was used"),
                Item::Lost(own) => {
                    assert_eq!((own.reason, own.sequence), (LossReason::Reader, 0));
                    lost += own.count;
                }
            }
        }
        assert_eq!((denials + lost, lost), (sent as u64 + 1, 100));
        assert!(last_was_denial);
    }

    #[test]
    fn uses_that_a_slow_reader_misses_are_no_refusals() {
        let events = super::super::Events::new(Journal::new("e".into(), 1));
        let journal = events.journal();
        let own = owner(1000, "a");
        let mut slow = journal.subscribe(Filter::default(), &Since::Now).unwrap();
        let request = || Request {
            pid: 1,
            uid: 1000,
            exe: Vec::new(),
            credential: "github".into(),
            rule: String::new(),
            host: String::new(),
            method: String::new(),
            path: String::new(),
            repository: String::new(),
            refs: Vec::new(),
            further_refs: 0,
            policy_digest: "".into(),
        };
        for _ in 0..QUEUE + 5 {
            journal.publish_use(own.clone(), request(), 2);
        }
        publish(journal, &own, "/x");
        let items: Vec<_> = std::iter::from_fn(|| slow.try_next()).collect();
        let lost = |wanted| {
            let counts = items.iter().filter_map(|item| match item {
                Item::Lost(loss) if loss.reason == wanted => Some(loss.count),
                _ => None,
            });
            counts.sum::<u64>()
        };
        assert_eq!((lost(LossReason::Use), lost(LossReason::Reader)), (10, 1));
    }

    #[test]
    fn a_loss_is_told_although_nothing_follows() {
        let journal = Journal::new("e".into(), 1);
        let own = owner(1000, "a");
        let mut slow = journal.subscribe(Filter::default(), &Since::Now).unwrap();
        for _ in 0..QUEUE + 7 {
            publish(&journal, &own, "/x");
        }
        let items: Vec<_> = std::iter::from_fn(|| slow.try_next()).collect();
        assert!(matches!(
            items.last(),
            Some(Item::Lost(Loss { count: 7, .. }))
        ));
    }

    #[test]
    fn history_has_the_losses_where_they_were() {
        let journal = Journal::new("e".into(), 4);
        let (own, other) = (owner(1000, "a"), owner(1001, "b"));
        publish(&journal, &own, "/1");
        journal.lost(own.clone(), LossReason::Rate, 5);
        journal.lost(own.clone(), LossReason::RingBuffer, 0);
        journal.lost(other, LossReason::RingBuffer, 6);
        publish(&journal, &own, "/4");
        let told = |filter: Filter, since: &Since| {
            let mut reader = journal.subscribe(filter, since).unwrap();
            std::iter::from_fn(|| reader.history())
                .map(|item| match item {
                    Item::Denial(denial) => (denial.sequence, denial.count),
                    Item::Used(used) => (used.sequence, used.count),
                    Item::Lost(loss) => (loss.sequence, loss.count),
                })
                .collect::<Vec<_>>()
        };
        let everything = told(Filter::default(), &Since::Oldest);
        assert_eq!(everything, [(1, 1), (2, 5), (3, 6), (4, 1)]);
        let mine = Filter {
            uid: Some(1000),
            ..Filter::default()
        };
        assert_eq!(told(mine, &Since::Oldest), [(1, 1), (2, 5), (4, 1)]);
        assert_eq!(told(Filter::default(), &after(2)), [(3, 6), (4, 1)]);
        publish(&journal, &own, "/5");
        publish(&journal, &own, "/6");
        let latest = told(Filter::default(), &Since::Oldest);
        assert_eq!(latest, [(3, 6), (4, 1), (5, 1), (6, 1)]);
    }

    #[tokio::test]
    async fn a_closed_journal_ends_its_subscriptions_after_what_they_hold() {
        let journal = Journal::new("e".into(), 1);
        let own = owner(1000, "a");
        let mut reader = journal.subscribe(Filter::default(), &Since::Now).unwrap();
        publish(&journal, &own, "/x");
        journal.close();
        assert!(reader.next().await.is_some());
        assert!(reader.next().await.is_none());
    }
}
