//! Follows what a detached command writes.

use std::{collections::VecDeque, sync::Arc};

use tokio::sync::watch;

use super::{Exited, Job, Record, log::Cursor};

/// What comes of a command that was detached.
#[derive(Debug)]
pub enum News {
    /// It wrote this.
    Record(Record),
    /// So many bytes of what it wrote before are not kept.
    Lost(u64),
    /// It has ended; nothing follows.
    Exited(Exited),
}

/// Follows what a detached command writes.
pub struct Reader {
    job: Arc<Job>,
    cursor: Cursor,
    queue: VecDeque<News>,
    news: watch::Receiver<()>,
    exited: watch::Receiver<Option<Exited>>,
    over: bool,
}

impl Job {
    /// Follows its output: all that is kept, or from now on.
    pub fn read(self: &Arc<Self>, history: bool) -> Reader {
        let (news, exited) = self.subscribe();
        Reader {
            job: self.clone(),
            cursor: self.cursor(history),
            queue: VecDeque::new(),
            news,
            exited,
            over: false,
        }
    }
}

impl Reader {
    /// What comes next; waits for it if `follow` says so.
    pub async fn next(&mut self, follow: bool) -> Option<News> {
        loop {
            if let Some(news) = self.queue.pop_front() {
                return Some(news);
            }
            if self.over {
                return None;
            }
            self.news.borrow_and_update();
            // Before the last look: nothing is written after it has ended.
            let exited = *self.exited.borrow_and_update();
            self.look().await;
            if !self.queue.is_empty() {
                continue;
            }
            if let Some(exited) = exited {
                self.over = true;
                return Some(News::Exited(exited));
            }
            if !follow {
                return None;
            }
            tokio::select! {
                _ = self.news.changed() => {}
                _ = self.exited.changed() => {}
            }
        }
    }

    async fn look(&mut self) {
        let (job, mut cursor) = (self.job.clone(), self.cursor);
        let read = tokio::task::spawn_blocking(move || {
            let read = job.kept(&mut cursor);
            (read, cursor)
        });
        match read.await {
            Ok((Ok((lost, records)), cursor)) => {
                self.cursor = cursor;
                if lost > 0 {
                    self.queue.push_back(News::Lost(lost));
                }
                self.queue.extend(records.into_iter().map(News::Record));
            }
            Ok((Err(error), _)) => {
                tracing::error!(exec = self.job.exec, %error, "cannot read what a command wrote");
            }
            // It panicked, which is in the log.
            Err(_) => {}
        }
    }
}
