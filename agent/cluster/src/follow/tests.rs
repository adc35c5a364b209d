use super::*;

#[test]
fn a_session_without_a_watch_is_one_more_failure_and_a_watch_that_lasted_ends_the_row() {
    let table = [(0, None, 1), (3, None, 4), (3, Some(MIN_WATCH_DURATION / 2), 4), (3, Some(MIN_WATCH_DURATION), 1)];
    for (failures, watched, expected) in table {
        assert_eq!(failures_after(failures, watched), expected, "{failures} {watched:?}");
    }
}

#[test]
fn a_refused_version_leads_to_a_list_that_the_server_has_and_then_to_the_newest() {
    let since = Start::Watch("7".to_owned()).refused();
    assert_eq!(since, Start::Since("7".to_owned()));
    assert_eq!((since.refused(), Start::Newest.refused()), (Start::Newest, Start::Newest));
}

#[test]
fn a_streaming_list_is_what_has_come_and_was_not_deleted_since() {
    let object =
        |uid: &str, version: &str| serde_json::json!({ "metadata": { "uid": uid, "resourceVersion": version } });
    let mut list = Listing::new();
    for change in [
        Change::Stored(object("a", "1")),
        Change::Stored(object("b", "2")),
        Change::Stored(object("a", "3")),
        Change::Bookmark("4".to_owned()),
        Change::Deleted(object("b", "5")),
    ] {
        add(&mut list, change);
    }
    assert_eq!(list.into_values().collect::<Vec<_>>(), [object("a", "3")]);

    let refused = |code, message: &str| {
        let (reason, message) = (String::new(), message.to_owned());
        RequestError::Refused { code, reason, message, retry_after: None }
    };
    let old_etcd = "the required storage feature RequestWatchProgress is disabled";
    // Code and message; whether a list follows; whether no other streaming list follows.
    let table = [
        (422, "sendInitialEvents is forbidden", true, true),
        (500, old_etcd, true, true),
        (500, "etcdserver: request timed out", true, false),
        (504, "Too large resource version", true, false),
        (410, "Expired", false, false),
        (429, "", false, false),
    ];
    for (code, message, list_follows, is_last) in table {
        assert_eq!(wants_list(&Err(refused(code, message))), list_follows, "{code} {message}");
        assert_eq!(lacks_streaming_lists(&refused(code, message)), is_last, "{code} {message}");
    }

    let newest = Start::Newest;
    assert_eq!(newest.as_streaming_list(), Some(WatchFrom::All(None)));
    assert_eq!(Start::Since("7".to_owned()).as_streaming_list(), Some(WatchFrom::All(Some("7"))));
    assert_eq!(Start::Watch("7".to_owned()).as_streaming_list(), None);
}
