//! logind: announces the machine's shutdown and delays it (org.freedesktop.login1(5), systemd-inhibit(1)).
//!
//! A delay lock is a file descriptor: the machine's shutdown begins when it is closed, or `InhibitDelayMaxSec` after the
//! announcement.

use std::io;
use std::path::PathBuf;
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::future::BoxFuture;
use limpet_host::blocking;
use limpet_telemetry::event::{EventType, Events};
use tokio::sync::mpsc;
use zbus::wire::{OwnedFd, OwnedVariant};
use zbus::{Connection, MatchRule, MessageStream};

const BUS_NAME: &str = "org.freedesktop.login1";
const OBJECT: &str = "/org/freedesktop/login1";
const INTERFACE: &str = "org.freedesktop.login1.Manager";
const SYSTEMD: [&str; 3] =
    ["org.freedesktop.systemd1", "/org/freedesktop/systemd1", "org.freedesktop.systemd1.Manager"];
const SIGHUP: i32 = 1;

/// The deadline of logind's answers.
const DEADLINE: Duration = Duration::from_secs(30);
/// The first and the longest pause before the bus is tried again; the pause doubles each time.
const PAUSES: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(300));
/// The pauses before logind is asked whether it has reloaded its configuration, which it does not report.
const RELOADING_MILLIS: [u64; 5] = [100, 200, 400, 800, 1_600];

/// The directory from which logind reads its settings, and limpet's file in it.
const DROP_INS: &str = "/etc/systemd/logind.conf.d";
const DROP_IN: &str = "99-limpet.conf";

/// Holds the machine's shutdown back until it is dropped.
#[derive(Debug)]
pub struct InhibitorLock {
    _fd: OwnedFd,
}

/// logind's announcement about the machine's shutdown.
#[derive(Debug)]
pub struct Announcement {
    /// Whether it is shutting down; false if that was cancelled, or never happened.
    pub shutting_down: bool,
    /// Delays the shutdown until it is dropped.
    pub lock: Option<InhibitorLock>,
}

/// The connection to logind, which is reopened when it is lost.
#[derive(Debug)]
pub struct Logind {
    /// How long the shutdown has to be delayed at most.
    period: Duration,
    /// The bus's address; `None` for the system bus.
    address: Option<String>,
    /// The directory of logind's settings.
    drop_ins: PathBuf,
}

impl Logind {
    /// The system's logind, whose shutdown is to be delayed for `period`.
    pub fn of_system(period: Duration) -> Self {
        Self { period, address: None, drop_ins: DROP_INS.into() }
    }

    /// logind on a separate bus, for tests.
    #[cfg(test)]
    pub(crate) fn at(address: String, period: Duration, drop_ins: PathBuf) -> Self {
        Self { period, address: Some(address), drop_ins }
    }

    /// Sends logind's announcements, first its current state. Ends with its receiver.
    pub fn follow(self, announcements: mpsc::Sender<Announcement>, events: Events) -> BoxFuture<'static, ()> {
        Box::pin(async move {
            let (mut pause, longest) = PAUSES;
            let mut reported = false;
            loop {
                let mut connected = false;
                match self.session(&announcements, &mut connected).await {
                    Ok(()) => return std::future::pending().await,
                    Err(error) => {
                        if connected {
                            (pause, reported) = (PAUSES.0, false);
                        }
                        if !std::mem::replace(&mut reported, true) {
                            let message = format!(
                                "logind cannot be reached, so that a shutdown of the machine ends no pod in order: {error}; \
                                 trying again"
                            );
                            tracing::warn!(%error, "logind cannot be reached; trying again");
                            events.emit(None, None, EventType::Warning, "ShutdownNotInhibited", message);
                        }
                    }
                }
                tokio::time::sleep(pause).await;
                pause = (pause * 2).min(longest);
            }
        })
    }

    /// Uses one connection, until it is lost, which is an error, or nobody listens any more. Sets `connected` once
    /// the lock is taken.
    async fn session(&self, announcements: &mpsc::Sender<Announcement>, connected: &mut bool) -> zbus::Result<()> {
        let prepare = async {
            let connection = self.connect().await?;
            let rule = MatchRule::builder()
                .msg_type(zbus::message::Type::Signal)
                .sender(BUS_NAME)
                .interface(INTERFACE)
                .member("PrepareForShutdown")
                .path(OBJECT)
                .build()?;
            // Subscribed before the state is read, so that no announcement in between is missed.
            let signals = MessageStream::for_match_rule(rule, &connection, None).await?;
            self.extend_delay(&connection).await?;
            let lock = inhibit(&connection).await?;
            let shutting_down = bool::try_from(property(&connection, "PreparingForShutdown").await?)?;
            Ok((connection, signals, lock, shutting_down))
        };
        let (connection, mut signals, lock, mut shutting_down) = in_time(prepare).await?;
        *connected = true;
        tracing::info!("logind waits for this agent before the machine goes down");
        let mut lock = Some(lock);
        loop {
            if !shutting_down && lock.is_none() {
                lock = Some(in_time(inhibit(&connection)).await?);
            }
            let given = lock.take_if(|_| shutting_down);
            if announcements.send(Announcement { shutting_down, lock: given }).await.is_err() {
                return Ok(());
            }
            let Some(signal) = signals.next().await else {
                return Err(zbus::Error::Failure("the connection to the bus was lost".to_owned()));
            };
            shutting_down = signal?.body().deserialize()?;
        }
    }

    async fn connect(&self) -> zbus::Result<Connection> {
        match &self.address {
            None => Connection::system().await,
            Some(address) => zbus::connection::Builder::address(address.as_str()).build().await,
        }
    }

    /// Makes logind wait as long as pods may take, as kubelet does, with a file among its settings. By default logind
    /// waits five seconds; if it ignores the file, that is all.
    async fn extend_delay(&self, connection: &Connection) -> zbus::Result<()> {
        if self.period <= delay(connection).await? {
            return Ok(());
        }
        if let Err(error) = self.write_drop_in().await {
            let file = self.drop_ins.join(DROP_IN);
            tracing::warn!(file = %file.display(), %error, "cannot set InhibitDelayMaxSec");
        } else {
            let [name, path, interface] = SYSTEMD;
            let body = ("systemd-logind.service", "all", SIGHUP);
            connection.call_method(Some(name), path, Some(interface), "KillUnit", &body).await?;
            for pause in RELOADING_MILLIS.map(Duration::from_millis) {
                if self.period <= delay(connection).await? {
                    return Ok(());
                }
                tokio::time::sleep(pause).await;
            }
        }
        let waits = delay(connection).await?;
        if self.period > waits {
            let needed = self.period.as_secs();
            tracing::warn!(
                ?waits,
                needed,
                "logind waits for a shorter time than the pods may take: set InhibitDelayMaxSec in logind.conf"
            );
        }
        Ok(())
    }

    async fn write_drop_in(&self) -> io::Result<()> {
        let text = format!(
            "# limpet: as long as shutdownGracePeriod\n[Login]\nInhibitDelayMaxSec={}\n",
            self.period.as_secs()
        );
        let directory = self.drop_ins.clone();
        let write = move |_: &_| {
            std::fs::create_dir_all(&directory)?;
            std::fs::write(directory.join(DROP_IN), text)
        };
        blocking::run(self.drop_ins.clone(), blocking::DEADLINE, write).await?
    }
}

/// How long logind waits for those who hold a lock.
async fn delay(connection: &Connection) -> zbus::Result<Duration> {
    Ok(Duration::from_micros(u64::try_from(property(connection, "InhibitDelayMaxUSec").await?)?))
}

async fn property(connection: &Connection, name: &str) -> zbus::Result<OwnedVariant> {
    let properties = Some("org.freedesktop.DBus.Properties");
    let reply = connection.call_method(Some(BUS_NAME), OBJECT, properties, "Get", &(INTERFACE, name)).await?;
    reply.body().deserialize()
}

async fn inhibit(connection: &Connection) -> zbus::Result<InhibitorLock> {
    let body = ("shutdown", "limpet", "limpet ends the pods of this node", "delay");
    let reply = connection.call_method(Some(BUS_NAME), OBJECT, Some(INTERFACE), "Inhibit", &body).await?;
    Ok(InhibitorLock { _fd: reply.body().deserialize()? })
}

async fn in_time<T>(work: impl Future<Output = zbus::Result<T>>) -> zbus::Result<T> {
    let late = || zbus::Error::Failure(format!("no answer within {} s", DEADLINE.as_secs()));
    tokio::time::timeout(DEADLINE, work).await.unwrap_or_else(|_| Err(late()))
}
