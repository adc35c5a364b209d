//! Ports, connections, and commands in a container of a private containerd.

use std::time::Duration;

use k8s_openapi::api::core::v1::ContainerPort;
use limpet_containerd::fixtures::TestContainer;
use limpet_tests::claim::Port;
use tokio::net::TcpListener;

use super::*;

fn container() -> Container {
    let named = |name: &str, port| ContainerPort {
        name: Some(name.to_owned()),
        container_port: port,
        ..ContainerPort::default()
    };
    Container { ports: Some(vec![named("web", 8080), named("admin", 9090)]), ..Container::default() }
}

#[test]
fn ports_are_found_by_number_and_by_name() {
    let cases = [
        (IntOrString::Int(80), Some(80)),
        (IntOrString::String("admin".to_owned()), Some(9090)),
        (IntOrString::String("8443".to_owned()), Some(8443)),
        (IntOrString::String("other".to_owned()), None),
        (IntOrString::Int(0), None),
        (IntOrString::Int(65536), None),
        (IntOrString::Int(-1), None),
    ];
    for (given, expected) in cases {
        assert_eq!(port(&given, &container()).ok(), expected, "{given:?}");
    }
}

#[tokio::test]
async fn a_connection_is_made_to_the_pod_unless_a_host_is_named() {
    let port = Port::claim().unwrap();
    let listener = TcpListener::bind(("127.0.0.1", port.number)).await.unwrap();
    let open = i32::from(port.number);
    let socket =
        |host: Option<&str>, port| TCPSocketAction { host: host.map(str::to_owned), port: IntOrString::Int(port) };
    let pod = Some(IpAddr::V4(Ipv4Addr::LOCALHOST));
    tcp_connect(&socket(None, open), &container(), pod).await.unwrap();
    tcp_connect(&socket(Some("127.0.0.1"), open), &container(), None).await.unwrap();
    let error = tcp_connect(&socket(Some(""), open), &container(), None).await.unwrap_err();
    assert_eq!(error.to_string(), "the pod has no address");
    drop(listener);
    let error = tcp_connect(&socket(None, open), &container(), pod).await.unwrap_err();
    assert!(error.to_string().starts_with(&format!("dial tcp 127.0.0.1:{open}: ")), "{error}");
}

#[tokio::test(start_paused = true)]
async fn an_action_ends_at_its_deadline() {
    let never = std::future::pending::<Result<(), HandlerError>>();
    let late = within(Some(Instant::now() + Duration::from_secs(1)), never).await;
    assert!(matches!(late, Err(HandlerError::TimedOut)));
    let done = within(None, async { Ok::<_, HandlerError>(7) }).await;
    assert_eq!(done.unwrap(), 7);
}

async fn run(test: &TestContainer, command: &[&str]) -> Result<Executed, ExecError> {
    let request = test.request(command);
    let id = ContainerId::new(request.container_id.as_str());
    run_command(&test.client, &test.fifo_dir(), &id, &request.command).await
}

#[tokio::test]
async fn a_command_has_a_code_and_bounded_output() {
    let Some(test) = TestContainer::start() else { return };
    let ended = run(&test, &["sh", "-c", "echo out; sleep 0.1; echo err >&2; exit 3"]).await.unwrap();
    assert_eq!(ended, Executed { code: 3, output: "out\nerr\n".to_owned() });
    // The output is more than is kept, and more than a pipe holds, but the command does not have to wait for a reader.
    let ended = run(&test, &["sh", "-c", "yes | head -c 200000; yes | head -c 200000 >&2; exit 4"]).await.unwrap();
    assert_eq!((ended.code, ended.output.len()), (4, MAX_OUTPUT));
    // The process that it left behind keeps its output open, but is not waited for.
    let ended = run(&test, &["sh", "-c", "echo begun; sleep 1000 & exit 0"]).await.unwrap();
    assert_eq!(ended, Executed { code: 0, output: "begun\n".to_owned() });
    let error = run(&test, &["/no/such/program"]).await.unwrap_err();
    assert!(matches!(error, ExecError::NotStarted { exit_code: 127, .. }), "{error}");
}

#[tokio::test]
async fn a_command_does_not_outlive_its_deadline() {
    let Some(test) = TestContainer::start() else { return };
    let late = within(Some(Instant::now()), run(&test, &["sleep", "1000"])).await;
    assert!(matches!(late, Err(HandlerError::TimedOut)));
    // The deadline also applies to a command whose output never pauses.
    let late = within(Some(Instant::now() + Duration::from_millis(200)), run(&test, &["yes"])).await;
    assert!(matches!(late, Err(HandlerError::TimedOut)));
    test.all_cleaned_up().await;
}
