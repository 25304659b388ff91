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
}

/// Listens for as long as it lives.
#[derive(Debug)]
pub(super) struct Signals(Vec<(Arrived, Signal)>);

impl Signals {
    /// Leaves those alone that the caller ignores, as `nohup` asks for;
    /// `ignored` is the mask of /proc/PID/status.
    pub(super) fn listen(ignored: u64, window: bool) -> io::Result<Self> {
        let mut signals = Vec::new();
        for kind in FORWARDED {
            let number = kind.as_raw_value().unsigned_abs();
            if ignored & (1 << (number - 1)) == 0 {
                signals.push((Arrived::Signal(number), signal(kind)?));
            }
        }
        if window {
            let changed = signal(SignalKind::window_change())?;
            signals.push((Arrived::WindowChanged, changed));
        }
        Ok(Self(signals))
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
