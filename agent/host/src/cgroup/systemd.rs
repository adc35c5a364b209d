//! Creates slices through systemd's D-Bus interface (org.freedesktop.systemd1(5)).

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use futures_util::StreamExt;
use serde::Serialize;
use zbus::wire::{OwnedObjectPath, Type, Variant};
use zbus::{Connection, MatchRule, MessageStream, fdo};

use super::CgroupError;
use super::limits::Property;

const BUS_NAME: &str = "org.freedesktop.systemd1";
const OBJECT: &str = "/org/freedesktop/systemd1";
const INTERFACE: &str = "org.freedesktop.systemd1.Manager";

/// How long systemd may take for a slice, including a restart of the bus.
const DEADLINE: Duration = Duration::from_secs(30);

/// Properties as `StartTransientUnit` and `SetUnitProperties` take them.
type Properties = Vec<(&'static str, Variant<'static>)>;

/// The first and the longest pause before the bus is called again; the pause doubles each time.
const PAUSES: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(2));

/// The system's manager, over a connection that is reopened after a restart of the bus.
#[derive(Debug)]
pub(super) struct Manager {
    /// The bus's address; `None` for the system bus.
    address: Option<String>,
    connection: Mutex<Option<Connection>>,
}

impl Manager {
    /// Connects to the system bus, and subscribes to the completion of jobs.
    pub(super) async fn connect() -> Result<Self, CgroupError> {
        let manager = Self::at(None);
        in_time("reach", BUS_NAME, async { manager.connected().await.map(drop) }).await?;
        Ok(manager)
    }

    fn at(address: Option<String>) -> Self {
        Self { address, connection: Mutex::default() }
    }

    /// The connection, reopened if it was lost.
    async fn connected(&self) -> zbus::Result<Connection> {
        let held = self.connection.lock().unwrap_or_else(PoisonError::into_inner).clone();
        if let Some(connection) = held.filter(|connection| !connection.is_closed()) {
            return Ok(connection);
        }
        let connection = match &self.address {
            None => Connection::system().await?,
            Some(address) => zbus::connection::Builder::address(address.as_str()).build().await?,
        };
        call(&connection, "Subscribe", &()).await?;
        *self.connection.lock().unwrap_or_else(PoisonError::into_inner) = Some(connection.clone());
        Ok(connection)
    }

    /// Repeats `work` on the connection while the bus is away or systemd has not returned to it.
    async fn persist<T, W: Future<Output = zbus::Result<T>>>(&self, work: impl Fn(Connection) -> W) -> zbus::Result<T> {
        let (mut pause, longest) = PAUSES;
        loop {
            let error = match self.connected().await {
                Ok(connection) => match work(connection.clone()).await {
                    Err(error) if connection.is_closed() || is_away(&error) => error,
                    outcome => return outcome,
                },
                Err(error) => error,
            };
            tracing::debug!(%error, "the bus of systemd is away; calling it again");
            tokio::time::sleep(pause).await;
            pause = (pause * 2).min(longest);
        }
    }

    /// Creates a slice with these properties, or changes those of an existing one.
    pub(super) async fn ensure(&self, unit: &str, exists: bool, properties: &[Property]) -> Result<(), CgroupError> {
        let properties_of_new = new_unit(unit, properties);
        let work = async |connection: Connection| {
            if exists {
                return change(&connection, unit, properties).await;
            }
            let auxiliary: Vec<(&str, Properties)> = Vec::new();
            let body = (unit, "replace", properties_of_new.clone(), auxiliary);
            match job(&connection, "StartTransientUnit", &body).await {
                // The slice was created after `exists` was read, by a unit started below it or by a call whose answer
                // was lost.
                Err(error) if is(&error, "UnitExists") => change(&connection, unit, properties).await,
                outcome => outcome,
            }
        };
        in_time(if exists { "change" } else { "start" }, unit, self.persist(work)).await
    }

    /// Moves a process into its own scope, in a slice.
    pub(super) async fn scope(&self, unit: &str, slice: &str, pid: u32) -> Result<(), CgroupError> {
        let mut properties = new_unit(unit, &[]);
        properties.push(("Slice", Variant::from(slice.to_owned())));
        properties.push(("PIDs", Variant::from(vec![pid])));
        let tried = AtomicBool::new(false);
        let work = async |connection: Connection| {
            let auxiliary: Vec<(&str, Properties)> = Vec::new();
            let body = (unit, "replace", properties.clone(), auxiliary);
            let again = tried.swap(true, Ordering::Relaxed);
            match job(&connection, "StartTransientUnit", &body).await {
                // The previous call was performed, but its answer was lost with the bus.
                Err(error) if again && is(&error, "UnitExists") => Ok(()),
                outcome => outcome,
            }
        };
        in_time("start", unit, self.persist(work)).await
    }

    /// Stops a slice with everything in it. A missing slice counts as stopped.
    pub(super) async fn stop(&self, unit: &str) -> Result<(), CgroupError> {
        let work = async |connection: Connection| match job(&connection, "StopUnit", &(unit, "replace")).await {
            Err(error) if is(&error, "NoSuchUnit") => Ok(()),
            outcome => outcome,
        };
        in_time("stop", unit, self.persist(work)).await
    }
}

/// Changes a slice until the next boot, because limpet's slices do not outlive it.
async fn change(connection: &Connection, unit: &str, properties: &[Property]) -> zbus::Result<()> {
    call(connection, "SetUnitProperties", &(unit, true, variants(properties))).await.map(drop)
}

/// Calls a method that starts a job, and waits for the job.
async fn job(connection: &Connection, method: &'static str, body: &(impl Serialize + Type)) -> zbus::Result<()> {
    let rule = MatchRule::builder()
        .msg_type(zbus::message::Type::Signal)
        .sender(BUS_NAME)
        .interface(INTERFACE)
        .member("JobRemoved")
        .path(OBJECT)
        .build()?;
    // Subscribed before the call, because the job may finish before its reply is read.
    let mut ended = MessageStream::for_match_rule(rule, connection, None).await?;
    let reply = call(connection, method, body).await?;
    let job: OwnedObjectPath = reply.body().deserialize()?;
    while let Some(signal) = ended.next().await {
        let signal = signal?;
        let (_id, path, _unit, result): (u32, OwnedObjectPath, String, String) = signal.body().deserialize()?;
        if path == job {
            return if result == "done" {
                Ok(())
            } else {
                Err(zbus::Error::Failure(format!("the job ended as {result}")))
            };
        }
    }
    Err(zbus::Error::Failure("the connection to the bus was lost".to_owned()))
}

async fn call(
    connection: &Connection,
    method: &'static str,
    body: &(impl Serialize + Type),
) -> zbus::Result<zbus::Message> {
    connection.call_method(Some(BUS_NAME), OBJECT, Some(INTERFACE), method, body).await
}

/// Whether systemd is missing from the bus, as it is for a moment after the bus restarts.
fn is_away(error: &zbus::Error) -> bool {
    let zbus::Error::FDO(error) = error else { return false };
    matches!(
        **error,
        fdo::Error::ServiceUnknown(_)
            | fdo::Error::NameHasNoOwner(_)
            | fdo::Error::NoReply(_)
            | fdo::Error::Disconnected(_)
    )
}

/// Whether systemd answered with this error.
fn is(error: &zbus::Error, name: &str) -> bool {
    let zbus::Error::MethodError(answered, ..) = error else { return false };
    answered.as_str().strip_prefix(BUS_NAME).and_then(|rest| rest.strip_prefix('.')) == Some(name)
}

/// A new slice's properties: no default dependencies, and accounting of all resources.
fn new_unit(unit: &str, properties: &[Property]) -> Properties {
    let switches = ["CPUAccounting", "MemoryAccounting", "TasksAccounting"].map(|name| Property::Switch(name, true));
    let mut all = vec![("Description", Variant::from(format!("limpet {unit}")))];
    all.extend(variants(&[Property::Switch("DefaultDependencies", false)]));
    all.extend(variants(&switches));
    all.extend(variants(properties));
    all
}

fn variants(properties: &[Property]) -> Properties {
    let variant = |property: &Property| match *property {
        Property::Number(name, value) => (name, Variant::from(value)),
        Property::Switch(name, value) => (name, Variant::from(value)),
    };
    properties.iter().map(variant).collect()
}

async fn in_time<T>(
    operation: &'static str,
    unit: &str,
    work: impl Future<Output = zbus::Result<T>>,
) -> Result<T, CgroupError> {
    let reason = match tokio::time::timeout(DEADLINE, work).await {
        Ok(Ok(done)) => return Ok(done),
        Ok(Err(error)) => error.to_string(),
        Err(_) => format!("no answer within {} s", DEADLINE.as_secs()),
    };
    Err(CgroupError::Systemd { operation, unit: unit.to_owned(), reason })
}

#[cfg(test)]
mod tests;
