//! A logind for tests. It has delay locks and announces shutdowns on a private bus, but shuts nothing down.

use std::io::{PipeReader, Read as _};
use std::path::PathBuf;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use anyhow::{Context as _, Result};
use futures_util::StreamExt as _;
use tokio::sync::mpsc;
use zbus::wire::{OwnedFd, OwnedVariant, Variant};
use zbus::{Connection, MessageStream, connection};

const NAMES: [&str; 2] = ["org.freedesktop.login1", "org.freedesktop.systemd1"];
const OBJECT: &str = "/org/freedesktop/login1";
const INTERFACE: &str = "org.freedesktop.login1.Manager";

/// What it has.
#[derive(Debug, Default)]
struct ManagerState {
    /// The other ends of the locks that were taken.
    locks: Vec<PipeReader>,
    shutting_down: bool,
    delay_seconds: u64,
    /// The file with `InhibitDelayMaxSec` that it reads on SIGHUP.
    settings: Option<PathBuf>,
}

/// What its thread and the test share.
#[derive(Debug, Default)]
struct Shared {
    state: Mutex<ManagerState>,
    given: Condvar,
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, ManagerState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The service, on a separate thread. Clones share it.
#[derive(Debug, Clone)]
pub struct FakeLogind {
    announcements: mpsc::UnboundedSender<bool>,
    shared: Arc<Shared>,
}

impl FakeLogind {
    /// Serves on that bus, until the bus is stopped. limpet may write `settings`, which are read on a SIGHUP.
    ///
    /// # Errors
    ///
    /// The bus does not answer.
    pub fn start(address: &str, settings: Option<PathBuf>) -> Result<Self> {
        let state = Mutex::new(ManagerState { delay_seconds: 5, settings, ..ManagerState::default() });
        let shared = Arc::new(Shared { state, ..Shared::default() });
        let (announcements, announced) = mpsc::unbounded_channel();
        let (serving, address) = (Arc::clone(&shared), address.to_owned());
        let (ready, started) = std::sync::mpsc::channel();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        std::thread::spawn(move || {
            runtime.block_on(async {
                let connected = connect(&address).await;
                let failed = connected.as_ref().err().map(ToString::to_string);
                let _ = ready.send(failed);
                if let Ok((connection, messages)) = connected {
                    // It ends with the bus.
                    let _ = serve(&connection, messages, &serving, announced).await;
                }
            });
        });
        match started.recv()? {
            None => Ok(Self { announcements, shared }),
            Some(error) => anyhow::bail!("{error}"),
        }
    }

    /// Announces a shutdown, or its cancellation.
    ///
    /// # Errors
    /// The bus is gone.
    pub fn announce(&self, shutting_down: bool) -> Result<()> {
        Ok(self.announcements.send(shutting_down)?)
    }

    /// Waits until so many locks were taken.
    ///
    /// # Errors
    ///
    /// They were not in time.
    pub fn wait_given(&self, count: usize, most: Duration) -> Result<()> {
        let Shared { state, given } = &*self.shared;
        let state = state.lock().unwrap_or_else(PoisonError::into_inner);
        let waits = |state: &mut ManagerState| state.locks.len() < count;
        let waited = given.wait_timeout_while(state, most, waits).unwrap_or_else(PoisonError::into_inner);
        anyhow::ensure!(!waited.1.timed_out(), "{} locks were asked for, and not {count}", waited.0.locks.len());
        Ok(())
    }

    /// Waits until the lock that was taken last is closed, when a real machine would go down.
    ///
    /// # Errors
    ///
    /// None was taken, or it is held for too long.
    pub fn wait_released(&self, most: Duration) -> Result<()> {
        let lock = self.shared.state().locks.last().map(PipeReader::try_clone);
        let mut lock = lock.context("no lock was given")??;
        let (done, released) = std::sync::mpsc::channel();
        std::thread::spawn(move || done.send(lock.read(&mut [0])));
        released.recv_timeout(most).context("the lock is still held")??;
        Ok(())
    }

    /// How long it waits for locks, in seconds.
    pub fn delay_seconds(&self) -> u64 {
        self.shared.state().delay_seconds
    }
}

async fn connect(address: &str) -> Result<(Connection, MessageStream)> {
    let connection = connection::Builder::address(address).build().await?;
    let messages = MessageStream::from(&connection);
    for name in NAMES {
        connection.request_name(name).await?;
    }
    Ok((connection, messages))
}

async fn serve(
    connection: &Connection,
    mut messages: MessageStream,
    shared: &Shared,
    mut announced: mpsc::UnboundedReceiver<bool>,
) -> Result<()> {
    loop {
        tokio::select! {
            Some(shutting_down) = announced.recv() => {
                shared.state().shutting_down = shutting_down;
                let body = (shutting_down,);
                connection.emit_signal(None::<&str>, OBJECT, INTERFACE, "PrepareForShutdown", &body).await?;
            }
            message = messages.next() => {
                let message = message.context("the bus is gone")??;
                if message.message_type() == zbus::message::Type::MethodCall {
                    answer(connection, &message, shared).await?;
                }
            }
        }
    }
}

async fn answer(connection: &Connection, message: &zbus::Message, shared: &Shared) -> Result<()> {
    let header = message.header();
    let state = || shared.state();
    match header.member().map(|member| member.as_str()) {
        Some("Inhibit") => {
            let (what, _who, _why, mode): (String, String, String, String) = message.body().deserialize()?;
            anyhow::ensure!((&*what, &*mode) == ("shutdown", "delay"), "{what} {mode}");
            let (reader, writer) = std::io::pipe()?;
            state().locks.push(reader);
            shared.given.notify_all();
            connection.reply(&header, &OwnedFd::from(std::os::fd::OwnedFd::from(writer))).await?;
        }
        Some("Get") => {
            let (_interface, name): (String, String) = message.body().deserialize()?;
            let value = match &*name {
                "PreparingForShutdown" => Variant::from(state().shutting_down),
                _ => Variant::from(state().delay_seconds * 1_000_000),
            };
            connection.reply(&header, &OwnedVariant::try_from(value)?).await?;
        }
        // A SIGHUP to itself.
        Some("KillUnit") => {
            let text = state().settings.as_ref().map(std::fs::read_to_string).transpose()?.unwrap_or_default();
            let delay = text.lines().find_map(|line| line.strip_prefix("InhibitDelayMaxSec="));
            state().delay_seconds = delay.and_then(|seconds| seconds.parse().ok()).unwrap_or(5);
            connection.reply(&header, &()).await?;
        }
        _ => {}
    }
    Ok(())
}
