//! D-Bus calls on a private bus, where a script answers instead of systemd.
#![allow(clippy::unwrap_used)]

use std::sync::{Arc, Mutex};

use zbus::wire::{ObjectPath, OwnedVariant};

use limpet_tests::message_bus::MessageBus;

use super::*;

async fn connect(bus: &MessageBus) -> Connection {
    zbus::connection::Builder::address(bus.address()).build().await.unwrap()
}

/// The recorded calls: `StartTransientUnit a.slice CPUWeight=39`.
type Calls = Arc<Mutex<Vec<String>>>;

/// Answers like systemd: `a.slice` can be started, `existing.slice` already exists, `bad.slice` fails.
async fn script(connection: Connection, calls: Calls) {
    // The stream is created before the name is claimed, since calls may arrive immediately.
    let mut messages = MessageStream::from(&connection);
    connection.request_name(BUS_NAME).await.unwrap();
    while let Some(Ok(message)) = messages.next().await {
        let header = message.header();
        let Some(member) = header.member().map(|member| member.to_string()) else { continue };
        if header.interface().map(|interface| interface.as_str()) != Some(INTERFACE) {
            continue;
        }
        let note = |text: String| calls.lock().unwrap().push(text);
        let refuse = |name: &'static str| connection.reply_error(&header, name, &("no",));
        let unit = match member.as_str() {
            "StartTransientUnit" => {
                type Given = Vec<(String, OwnedVariant)>;
                let body = message.body();
                let (unit, mode, given, _): (String, String, Given, Vec<(String, Given)>) = body.deserialize().unwrap();
                let property =
                    |wanted: &str| given.iter().find(|(name, _)| name == wanted).map(|(_, value)| value.clone());
                note(match (property("CPUWeight"), property("Slice"), property("PIDs")) {
                    (None, Some(slice), Some(pids)) => {
                        let (slice, pids) = (String::try_from(slice).unwrap(), Vec::<u32>::try_from(pids).unwrap());
                        format!("{member} {unit} {mode} {slice} {pids:?}")
                    }
                    (weight, ..) => format!("{member} {unit} {mode} {}", u64::try_from(weight.unwrap()).unwrap()),
                });
                unit
            }
            "SetUnitProperties" => {
                let body = message.body();
                let (unit, runtime, given): (String, bool, Vec<(String, OwnedVariant)>) = body.deserialize().unwrap();
                note(format!("{member} {unit} {runtime} {}", given.len()));
                connection.reply(&header, &()).await.unwrap();
                continue;
            }
            "StopUnit" => {
                let (unit, _mode): (String, String) = message.body().deserialize().unwrap();
                note(format!("{member} {unit}"));
                unit
            }
            _ => {
                note(member);
                connection.reply(&header, &()).await.unwrap();
                continue;
            }
        };
        if unit == "existing.slice" {
            refuse("org.freedesktop.systemd1.UnitExists").await.unwrap();
            continue;
        }
        if unit == "missing.slice" {
            refuse("org.freedesktop.systemd1.NoSuchUnit").await.unwrap();
            continue;
        }
        let end = |number: u32, result: &'static str| {
            let path = ObjectPath::try_from(format!("{OBJECT}/job/{number}")).unwrap();
            let (connection, unit) = (connection.clone(), unit.clone());
            async move {
                let body = (number, path, unit, result);
                connection.emit_signal(None::<&str>, OBJECT, INTERFACE, "JobRemoved", &body).await.unwrap();
            }
        };
        // Another job ends first, and this one ends before its reply; neither may confuse the caller.
        end(6, "failed").await;
        end(7, if unit == "bad.slice" { "failed" } else { "done" }).await;
        connection.reply(&header, &ObjectPath::try_from(format!("{OBJECT}/job/7")).unwrap()).await.unwrap();
    }
}

#[tokio::test]
async fn slices_are_started_changed_and_stopped() {
    let Some(bus) = MessageBus::start("slices").unwrap() else { return };
    let calls = Calls::default();
    let server = connect(&bus).await;
    let answering = tokio::spawn(script(server.clone(), calls.clone()));
    wait_for_name(&connect(&bus).await).await;
    let manager = Manager::at(Some(bus.address().to_owned()));
    let weight = [Property::Number("CPUWeight", 39)];
    manager.ensure("a.slice", false, &weight).await.unwrap();
    manager.ensure("a.slice", true, &weight).await.unwrap();
    manager.ensure("existing.slice", false, &weight).await.unwrap();
    manager.scope("a.scope", "a.slice", 7).await.unwrap();
    manager.stop("a.slice").await.unwrap();
    manager.stop("missing.slice").await.unwrap();
    let failed = manager.ensure("bad.slice", false, &weight).await.unwrap_err();
    assert_eq!(failed.to_string(), "start bad.slice with systemd: the job ended as failed");
    let wanted = [
        "Subscribe",
        "StartTransientUnit a.slice replace 39",
        "SetUnitProperties a.slice true 1",
        "StartTransientUnit existing.slice replace 39",
        "SetUnitProperties existing.slice true 1",
        "StartTransientUnit a.scope replace a.slice [7]",
        "StopUnit a.slice",
        "StopUnit missing.slice",
        "StartTransientUnit bad.slice replace 39",
    ];
    assert_eq!(*calls.lock().unwrap(), wanted);
    answering.abort();
}

#[tokio::test]
async fn a_restart_of_the_bus_is_survived() {
    let Some(mut bus) = MessageBus::start("restart").unwrap() else { return };
    let calls = Calls::default();
    let answering = tokio::spawn(script(connect(&bus).await, calls.clone()));
    wait_for_name(&connect(&bus).await).await;
    let manager = Manager::at(Some(bus.address().to_owned()));
    let weight = [Property::Number("CPUWeight", 39)];
    manager.ensure("a.slice", false, &weight).await.unwrap();
    bus.stop().unwrap();
    answering.await.unwrap();
    calls.lock().unwrap().clear();
    // The call begins while there is no bus, and continues while systemd is not on it.
    let back = async {
        bus.start_again().unwrap();
        let server = connect(&bus).await;
        tokio::spawn(script(server, calls.clone())).abort_handle()
    };
    let (ended, answering) = tokio::join!(manager.stop("a.slice"), back);
    ended.unwrap();
    manager.ensure("a.slice", false, &weight).await.unwrap();
    assert_eq!(*calls.lock().unwrap(), ["Subscribe", "StopUnit a.slice", "StartTransientUnit a.slice replace 39"]);
    answering.abort();
}

/// Returns once the script owns systemd's name.
async fn wait_for_name(connection: &Connection) {
    let rule = MatchRule::builder()
        .msg_type(zbus::message::Type::Signal)
        .sender("org.freedesktop.DBus")
        .member("NameOwnerChanged")
        .arg(0, BUS_NAME)
        .build()
        .unwrap();
    let mut changes = MessageStream::for_match_rule(rule, connection, None).await.unwrap();
    let asked = connection
        .call_method(
            Some("org.freedesktop.DBus"),
            "/org/freedesktop/DBus",
            Some("org.freedesktop.DBus"),
            "NameHasOwner",
            &BUS_NAME,
        )
        .await
        .unwrap();
    if !asked.body().deserialize::<bool>().unwrap() {
        changes.next().await;
    }
}

#[test]
fn a_new_slice_is_counted_and_limited() {
    let made = new_unit("kubepods.slice", &[Property::Number("CPUWeight", 39)]);
    let property = |wanted: &str| made.iter().find(|(name, _)| *name == wanted).map(|(_, value)| value.clone());
    assert_eq!(property("CPUWeight"), Some(Variant::from(39_u64)));
    assert_eq!(property("MemoryAccounting"), Some(Variant::from(true)));
    assert_eq!(property("DefaultDependencies"), Some(Variant::from(false)));
}
