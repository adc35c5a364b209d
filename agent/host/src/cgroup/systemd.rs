//! Slices by systemd's D-Bus interface (org.freedesktop.systemd1(5)).

use std::time::Duration;

use futures_util::StreamExt;
use serde::Serialize;
use zbus::wire::{OwnedObjectPath, Type, Variant};
use zbus::{Connection, MatchRule, MessageStream};

use super::CgroupError;
use super::limits::Property;

const BUS_NAME: &str = "org.freedesktop.systemd1";
const OBJECT: &str = "/org/freedesktop/systemd1";
const INTERFACE: &str = "org.freedesktop.systemd1.Manager";

/// How long systemd may take over one slice.
const DEADLINE: Duration = Duration::from_secs(30);

/// Properties as `StartTransientUnit` and `SetUnitProperties` take them.
type Properties = Vec<(&'static str, Variant<'static>)>;

/// A connection to the system's manager.
#[derive(Debug)]
pub(super) struct Manager {
    connection: Connection,
}

impl Manager {
    /// Connects to the system bus, and subscribes to the end of jobs.
    pub(super) async fn connect() -> Result<Self, CgroupError> {
        in_time("reach", BUS_NAME, async { Self::over(Connection::system().await?).await }).await
    }

    async fn over(connection: Connection) -> zbus::Result<Self> {
        let manager = Self { connection };
        manager.call("Subscribe", &()).await?;
        Ok(manager)
    }

    /// Creates a slice with these properties, or changes those of an existing one.
    pub(super) async fn ensure(&self, unit: &str, exists: bool, properties: &[Property]) -> Result<(), CgroupError> {
        if exists {
            return in_time("change", unit, self.change(unit, properties)).await;
        }
        let auxiliary: Vec<(&str, Properties)> = Vec::new();
        let body = (unit, "replace", new_unit(unit, properties), auxiliary);
        let start = async {
            match self.job("StartTransientUnit", &body).await {
                // Created since `exists` was read, by a unit started below it.
                Err(error) if is(&error, "UnitExists") => self.change(unit, properties).await,
                outcome => outcome,
            }
        };
        in_time("start", unit, start).await
    }

    /// Moves a process into its own scope, in a slice.
    pub(super) async fn scope(&self, unit: &str, slice: &str, pid: u32) -> Result<(), CgroupError> {
        let mut properties = new_unit(unit, &[]);
        properties.push(("Slice", Variant::from(slice.to_owned())));
        properties.push(("PIDs", Variant::from(vec![pid])));
        let auxiliary: Vec<(&str, Properties)> = Vec::new();
        let body = (unit, "replace", properties, auxiliary);
        in_time("start", unit, self.job("StartTransientUnit", &body)).await
    }

    /// Stops a slice and all that is left in it; a missing one counts as stopped.
    pub(super) async fn stop(&self, unit: &str) -> Result<(), CgroupError> {
        let stop = async {
            match self.job("StopUnit", &(unit, "replace")).await {
                Err(error) if is(&error, "NoSuchUnit") => Ok(()),
                outcome => outcome,
            }
        };
        in_time("stop", unit, stop).await
    }

    /// Changes a slice until the next boot: limpet's slices do not outlive it.
    async fn change(&self, unit: &str, properties: &[Property]) -> zbus::Result<()> {
        self.call("SetUnitProperties", &(unit, true, variants(properties))).await.map(drop)
    }

    /// Calls a method that starts a job, and waits until the job is done.
    async fn job(&self, method: &'static str, body: &(impl Serialize + Type)) -> zbus::Result<()> {
        let rule = MatchRule::builder()
            .msg_type(zbus::message::Type::Signal)
            .sender(BUS_NAME)
            .interface(INTERFACE)
            .member("JobRemoved")
            .path(OBJECT)
            .build()?;
        // Subscribed before the call: the job may be done before its reply is read.
        let mut ended = MessageStream::for_match_rule(rule, &self.connection, None).await?;
        let reply = self.call(method, body).await?;
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

    async fn call(&self, method: &'static str, body: &(impl Serialize + Type)) -> zbus::Result<zbus::Message> {
        self.connection.call_method(Some(BUS_NAME), OBJECT, Some(INTERFACE), method, body).await
    }
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
