#![allow(clippy::unwrap_used)]

use serde_json::json;

use super::*;

const PASSWD: &str = "\
root:x:0:0:root:/root:/bin/sh
# a comment
broken line
www:x:33:34:web:/var/www:/bin/false
odd:x:notanumber:1::/:
";

const GROUP: &str = "\
root:x:0:
wheel:x:10:root,www
staff:x:50:www
video:x:44:
";

fn request(image_user: &str) -> UserRequest {
    UserRequest { image_user: image_user.to_owned(), ..UserRequest::default() }
}

fn user(uid: u32, gid: u32, groups: &[u32], home: &str) -> ProcessUser {
    ProcessUser { uid, gid, additional_gids: groups.to_vec(), home: home.to_owned() }
}

#[test]
fn users_and_groups_resolve() {
    let of_pod = |user: Option<i64>, group: Option<i64>, image: &str| UserRequest {
        run_as_user: user,
        run_as_group: group,
        ..request(image)
    };
    let cases = [
        ("nothing is root", request(""), user(0, 0, &[0, 10], "/root")),
        ("a name", request("www"), user(33, 34, &[10, 34, 50], "/var/www")),
        ("its number", request("33"), user(33, 34, &[10, 34, 50], "/var/www")),
        ("a name and a group", request("www:video"), user(33, 44, &[10, 44, 50], "/var/www")),
        ("a name and a number", request("www:7"), user(33, 7, &[7, 10, 50], "/var/www")),
        ("unknown numbers", request("1000:2000"), user(1000, 2000, &[2000], "")),
        ("an unknown group", request("www:nosuch"), user(33, 34, &[10, 34, 50], "/var/www")),
        ("an unknown group of an unknown number", request("1000:nosuch"), user(1000, 0, &[0], "")),
        ("an unknown number", request("1000"), user(1000, 0, &[0], "")),
        ("an empty group", request("www:"), user(33, 34, &[10, 34, 50], "/var/www")),
        ("the Pod's user", of_pod(Some(1000), None, "www:video"), user(1000, 0, &[0], "")),
        ("the Pod's known user", of_pod(Some(33), None, ""), user(33, 34, &[10, 34, 50], "/var/www")),
        ("the Pod's user and group", of_pod(Some(33), Some(5), ""), user(33, 5, &[5, 10, 50], "/var/www")),
        (
            "the Pod's group, the image's user",
            of_pod(None, Some(5), "www:video"),
            user(33, 5, &[5, 10, 50], "/var/www"),
        ),
        (
            "groups of the Pod",
            UserRequest { groups: vec![99, 10, 7], ..request("www") },
            user(33, 34, &[7, 10, 34, 50, 99], "/var/www"),
        ),
        (
            "strict groups",
            UserRequest { groups: vec![99], strict_groups: true, ..request("www") },
            user(33, 34, &[34, 99], "/var/www"),
        ),
    ];
    for (case, request, wanted) in cases {
        assert_eq!(resolve(&request, Some(PASSWD), Some(GROUP)).unwrap(), wanted, "{case}");
    }
}

#[test]
fn images_without_account_files_have_numbers_only() {
    assert_eq!(resolve(&request(""), None, None).unwrap(), user(0, 0, &[0], ""));
    assert_eq!(resolve(&request("5:6"), None, None).unwrap(), user(5, 6, &[6], ""));
    assert_eq!(resolve(&request("www"), None, None), Err(UserError::NoUser("www".to_owned())));
    // An unknown group is ignored. kubelet ignores the image's group altogether.
    assert_eq!(resolve(&request("5:web"), None, None).unwrap(), user(5, 0, &[0], ""));
}

#[test]
fn non_root_is_verified_with_kubelets_messages() {
    let user = |run_as_user: Option<i64>, image: &str| {
        let request = UserRequest { run_as_user, run_as_non_root: true, ..request(image) };
        resolve(&request, Some(PASSWD), Some(GROUP)).map_err(|error| error.to_string())
    };
    assert_eq!(user(Some(0), "www").unwrap_err(), "container's runAsUser breaks non-root policy");
    assert_eq!(user(None, "").unwrap_err(), "container has runAsNonRoot and image will run as root");
    assert_eq!(user(None, "0:5").unwrap_err(), "container has runAsNonRoot and image will run as root");
    assert_eq!(
        user(None, "www").unwrap_err(),
        "container has runAsNonRoot and image has non-numeric user (www), cannot verify user is non-root"
    );
    assert_eq!(user(None, "33").unwrap().uid, 33);
    assert_eq!(user(Some(1), "root").unwrap().uid, 1);
}

#[test]
fn ids_out_of_range_are_refused() {
    for value in [-1, i64::from(u32::MAX)] {
        let wrong = UserRequest { run_as_user: Some(value), ..UserRequest::default() };
        assert_eq!(resolve(&wrong, None, None), Err(UserError::Range { field: "runAsUser", value }));
        let wrong = UserRequest { groups: vec![value], ..UserRequest::default() };
        assert!(resolve(&wrong, None, None).is_err());
    }
    // To the kernel the highest number says "do not change": the process would stay root.
    for image_user in ["4294967295", "2147483648", "0:4294967295", "odd", "1:odd"] {
        let request = UserRequest { image_user: image_user.to_owned(), ..UserRequest::default() };
        let accounts = (Some("odd:x:4294967295:1::/:\n"), Some("odd:x:4294967295:\n"));
        let refused = resolve(&request, accounts.0, accounts.1).unwrap_err().to_string();
        assert!(refused.contains("is not between 0 and 2147483647"), "{image_user}: {refused}");
    }
    let most = UserRequest { image_user: "2147483647:2147483647".to_owned(), ..UserRequest::default() };
    assert!(resolve(&most, None, None).is_ok());
}

#[test]
fn the_containers_context_wins_over_the_pods() {
    let pod: PodSpec = serde_json::from_value(json!({
        "securityContext": {"runAsUser": 1, "runAsGroup": 2, "runAsNonRoot": true, "fsGroup": 3,
                            "supplementalGroups": [4, 5], "supplementalGroupsPolicy": "Strict"},
        "containers": [{"name": "a"}, {"name": "b", "securityContext": {"runAsUser": 9, "runAsNonRoot": false}}],
    }))
    .unwrap();
    let wanted = UserRequest {
        run_as_user: Some(1),
        run_as_group: Some(2),
        run_as_non_root: true,
        image_user: "www".to_owned(),
        groups: vec![3, 4, 5],
        strict_groups: true,
    };
    assert_eq!(UserRequest::new(&pod, &pod.containers[0], Some("www")), wanted);
    let wanted = UserRequest { run_as_user: Some(9), run_as_non_root: false, ..wanted };
    assert_eq!(UserRequest::new(&pod, &pod.containers[1], Some("www")), wanted);
}
