//! What a guest says to the host, and through which serial port: the command's
//! output, the daemon's log, the console, and how the run ended.

use std::{
    io::{self, BufRead as _, BufReader, Read as _, Write},
    os::unix::net::{UnixListener, UnixStream},
    path::{Path, PathBuf},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result};

/// QEMU's description of the socket that a port is.
pub(crate) fn socket(directory: &Path, port: &str) -> String {
    format!("socket,id={port},path={}", directory.join(port).display())
}

/// The guest's serial ports, each a socket that QEMU connects to.
pub(crate) struct Ports {
    directory: PathBuf,
    heard: Heard,
    /// With the path of the socket that each reads.
    readers: Vec<(PathBuf, JoinHandle<()>)>,
}

impl Ports {
    /// None yet; their sockets will be in `directory`.
    pub(crate) fn new(directory: &Path, heard: &Heard) -> Self {
        Self {
            directory: directory.to_owned(),
            heard: heard.clone(),
            readers: Vec::new(),
        }
    }

    /// Passes what comes out of a port on to `sink`.
    pub(crate) fn read(&mut self, port: &str, mut sink: impl Write + Send + 'static) -> Result<()> {
        self.serve(port, move |mut stream, heard| {
            let mut buffer = vec![0; 1 << 16];
            while let Ok(count @ 1..) = stream.read(&mut buffer) {
                heard.now();
                // A reader that went away must not stop the guest.
                let _ = sink.write_all(&buffer[..count]).and_then(|()| sink.flush());
            }
        })
    }

    /// Takes the one line by which the guest says how the run ended, and
    /// answers it: by then QEMU has passed on all that was written before.
    pub(crate) fn answer(&mut self, port: &str, verdict: Arc<Mutex<Option<String>>>) -> Result<()> {
        self.serve(port, move |stream, heard| {
            let mut line = String::new();
            let mut stream = BufReader::new(stream);
            if stream.read_line(&mut line).is_ok_and(|count| count > 0) {
                heard.now();
                *lock(&verdict) = Some(line.trim().to_owned());
                // A guest without an answer powers off on its own.
                let _ = stream.get_mut().write_all(b"taken\n");
            }
            let _ = io::copy(&mut stream, &mut io::sink());
        })
    }

    fn serve(
        &mut self,
        port: &str,
        serve: impl FnOnce(UnixStream, Heard) + Send + 'static,
    ) -> Result<()> {
        let path = self.directory.join(port);
        let listener = UnixListener::bind(&path)
            .with_context(|| format!("cannot listen at `{}`", path.display()))?;
        let heard = self.heard.clone();
        let reader = thread::spawn(move || {
            if let Ok((stream, _)) = listener.accept() {
                serve(stream, heard);
            }
        });
        self.readers.push((path, reader));
        Ok(())
    }

    /// Waits until everything has been read. QEMU has ended.
    pub(crate) fn finish(self) {
        for (path, reader) in self.readers {
            // Ends an `accept` that QEMU never answered.
            drop(UnixStream::connect(path));
            if let Err(panic) = reader.join() {
                std::panic::resume_unwind(panic);
            }
        }
    }
}

/// When something was last heard of the guest.
#[derive(Clone)]
pub(crate) struct Heard(Arc<Mutex<Instant>>);

impl Default for Heard {
    fn default() -> Self {
        Self(Arc::new(Mutex::new(Instant::now())))
    }
}

impl Heard {
    /// Something was.
    fn now(&self) {
        *lock(&self.0) = Instant::now();
    }

    /// How long that is ago.
    pub(crate) fn since(&self) -> Duration {
        lock(&self.0).elapsed()
    }
}

/// A sink that keeps everything.
#[derive(Clone, Default)]
pub(crate) struct Kept(Arc<Mutex<Vec<u8>>>);

impl Kept {
    pub(crate) fn take(&self) -> Vec<u8> {
        std::mem::take(&mut lock(&self.0))
    }

    pub(crate) fn text(&self) -> String {
        String::from_utf8_lossy(&lock(&self.0)).replace('\r', "")
    }
}

impl Write for Kept {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        lock(&self.0).extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
