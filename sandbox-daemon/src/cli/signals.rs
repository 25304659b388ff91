//! Signals that the client gets in the command's place.

use std::{
    io,
    pin::Pin,
    task::{Context, Poll},
};

use tokio::signal::unix::{Signal, SignalKind, signal};

/// Those that reach the command as if they had been sent to it.
const FORWARDED: [SignalKind; 6] = [
    SignalKind::terminate(),
    SignalKind::interrupt(),
    SignalKind::hangup(),
    SignalKind::quit(),
    SignalKind::user_defined1(),
    SignalKind::user_defined2(),
];

/// What arrived.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Arrived {
    /// To be passed on; Linux number.
    Signal(u32),
    /// The window has another size.
    WindowChanged,
    /// The shell, or its user, stops the job.
    Stopped,
    /// The job goes on.
    Continued,
}

/// Listens for as long as it lives.
#[derive(Debug)]
pub(super) struct Signals(Vec<(Arrived, Signal)>);

impl Signals {
    /// Leaves those alone that the caller ignores, as `nohup` asks for;
    /// `ignored` is the mask of /proc/PID/status. A command with a terminal of
    /// its own is told of the window.
    pub(super) fn listen(ignored: u64, own_terminal: bool) -> io::Result<Self> {
        let number = |kind: SignalKind| kind.as_raw_value().unsigned_abs();
        let mut wanted: Vec<_> = FORWARDED
            .map(|kind| (Arrived::Signal(number(kind)), kind))
            .into();
        if own_terminal {
            wanted.push((Arrived::WindowChanged, SignalKind::window_change()));
        }
        wanted.push((Arrived::Stopped, SignalKind::from_raw(libc::SIGTSTP)));
        wanted.push((Arrived::Continued, SignalKind::from_raw(libc::SIGCONT)));
        wanted.retain(|(_, kind)| ignored & (1 << (number(*kind) - 1)) == 0);
        let listen = |(arrived, kind)| Ok((arrived, signal(kind)?));
        wanted
            .into_iter()
            .map(listen)
            .collect::<io::Result<_>>()
            .map(Self)
    }

    /// The next one.
    pub(super) async fn next(&mut self) -> Arrived {
        std::future::poll_fn(|context| Pin::new(&mut *self).poll_next(context)).await
    }

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Arrived> {
        for (arrived, signal) in &mut self.0 {
            if signal.poll_recv(context).is_ready() {
                return Poll::Ready(*arrived);
            }
        }
        Poll::Pending
    }
}
