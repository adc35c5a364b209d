use serde_json::{Value, json};

use super::*;

/// The file of Debian 13.
const CONTEXTS: &str = r#"# of the policy
process = "system_u:system_r:container_t:s0"
content = "system_u:object_r:virt_var_lib_t:s0"
 file="system_u:object_r:container_file_t:s0"
;kvm_process = "system_u:system_r:other_t:s0"
kvm_process = "system_u:system_r:container_kvm_t:s0"
"#;

fn contexts() -> ContainerContexts {
    ContainerContexts::parse(CONTEXTS).unwrap()
}

fn labels_with(options: Value, kind: ContainerKind) -> Result<(Option<String>, String), String> {
    let options: SELinuxOptions = serde_json::from_value(options).unwrap();
    labels(&contexts(), Some(&options), "s0:c1,c2", kind).map(|labels| (labels.process, labels.file))
}

#[test]
fn a_label_has_three_or_four_parts() {
    for text in ["u:r:t", "u:r:t:s0", "u:r:t:s0-s0:c0.c1023"] {
        assert_eq!(Label::parse(text).unwrap().to_string(), text);
    }
    for text in ["", "u", "u:r", ":r:t", "u::t", "u:r:t:"] {
        assert_eq!(Label::parse(text), None, "{text:?}");
    }
}

#[test]
fn the_policys_labels_are_read() {
    let contexts = contexts();
    assert_eq!(contexts.process.to_string(), "system_u:system_r:container_t:s0");
    assert_eq!(contexts.file.to_string(), "system_u:object_r:container_file_t:s0");
    assert_eq!(contexts.kvm_process.unwrap().to_string(), "system_u:system_r:container_kvm_t:s0");
    for (text, error) in [
        ("", "it has no label \"process\""),
        ("process = \"u:r:t\"", "it has no label \"file\""),
        ("process = \"u\"\nfile = \"u:r:t\"", "it has no label \"process\""),
    ] {
        assert_eq!(ContainerContexts::parse(text).unwrap_err(), error);
    }
}

#[test]
fn the_policys_name_is_a_directory() {
    for (text, name) in [
        ("SELINUX=enforcing\nSELINUXTYPE=targeted\n", Some("targeted")),
        ("# SELINUXTYPE=mls\nSELINUXTYPE = \"default\" ", Some("default")),
        ("SELINUX=enforcing", None),
        ("SELINUXTYPE=", None),
        ("SELINUXTYPE=../up", None),
    ] {
        assert_eq!(policy_name(text).as_deref(), name, "{text:?}");
    }
}

#[test]
fn options_replace_parts_of_the_policys_labels() {
    let file = |level: &str| format!("system_u:object_r:container_file_t:{level}");
    let cases = [
        (json!({}), "system_u:system_r:container_t:s0:c1,c2", file("s0:c1,c2")),
        (json!({"level": ""}), "system_u:system_r:container_t:s0:c1,c2", file("s0:c1,c2")),
        (json!({"level": "s0:c7,c9"}), "system_u:system_r:container_t:s0:c7,c9", file("s0:c7,c9")),
        (json!({"type": "spc_t"}), "system_u:system_r:spc_t:s0:c1,c2", file("s0:c1,c2")),
        (json!({"role": "my_r"}), "system_u:my_r:container_t:s0:c1,c2", file("s0:c1,c2")),
        (
            json!({"user": "my_u", "level": "s0"}),
            "my_u:system_r:container_t:s0",
            "my_u:object_r:container_file_t:s0".to_owned(),
        ),
    ];
    for (options, process, file) in cases {
        let labelled = labels_with(options.clone(), ContainerKind::default());
        assert_eq!(labelled, Ok((Some(process.to_owned()), file)), "{options}");
    }
}

#[test]
fn a_privileged_container_has_labelled_files_and_a_machine_its_own_type() {
    let privileged = ContainerKind { privileged: true, ..ContainerKind::default() };
    assert_eq!(
        labels_with(json!({}), privileged),
        Ok((None, "system_u:object_r:container_file_t:s0:c1,c2".to_owned()))
    );
    let machine = ContainerKind { virtual_machine: true, ..ContainerKind::default() };
    let process = "system_u:system_r:container_kvm_t:s0:c1,c2".to_owned();
    assert_eq!(labels_with(json!({"type": "spc_t"}), machine).unwrap().0, Some(process));
}

#[test]
fn a_policy_without_levels_gets_none_unless_the_pod_insists() {
    let contexts = ContainerContexts::parse("process=u:r:t\nfile=u:object_r:f").unwrap();
    let labels_with = |options: Value| {
        let options = serde_json::from_value(options).unwrap();
        labels(&contexts, Some(&options), "s0:c1,c2", ContainerKind::default()).unwrap()
    };
    let plain = ContainerLabels { process: Some("u:r:t".to_owned()), file: "u:object_r:f".to_owned() };
    assert_eq!(labels_with(json!({})), plain);
    assert_eq!(labels_with(json!({"level": "s0"})).file, "u:object_r:f:s0");
}

#[test]
fn levels_have_containerds_form() {
    for level in ["s0", "s0-s1", "s0:c1", "s0:c1,c2", "s0:c0.c1023", "s0-s0:c0.c1023,c7", "s9:c9999"] {
        assert_eq!(check_level(level), Ok(()), "{level}");
    }
    for level in
        ["", "s", "s10", "0", "s0:", "s0:c", "s0:c1,", "s0:c10000", "s0:1", "s0:c1.", "s0 :c1", "s0-:c1", "s0:c1\n"]
    {
        let expected = format!("the format of 'level' {level:?} is not correct");
        assert_eq!(check_level(level), Err(expected), "{level:?}");
    }
    let malformed = labels_with(json!({"level": "high"}), ContainerKind::default());
    assert_eq!(malformed, Err("the format of 'level' \"high\" is not correct".to_owned()));
}

#[test]
fn a_containers_options_replace_the_pods_as_a_whole() {
    let spec: PodSpec = serde_json::from_value(json!({
        "securityContext": {"seLinuxOptions": {"level": "s0:c1,c2", "type": "spc_t"}},
        "containers": [
            {"name": "a"},
            {"name": "b", "securityContext": {"seLinuxOptions": {"type": "my_t"}}},
            {"name": "c", "securityContext": {"seLinuxOptions": {"level": "s0:c3,c4"}}},
        ],
        "initContainers": [{"name": "d", "securityContext": {"seLinuxOptions": {"level": "s0:c5,c6"}}}],
    }))
    .unwrap();
    let process = |index: usize| {
        let options = options_of(&spec, &spec.containers[index]);
        labels(&contexts(), options, "s0:c1,c2", ContainerKind::default()).unwrap().process.unwrap()
    };
    assert_eq!(process(0), "system_u:system_r:spc_t:s0:c1,c2");
    assert_eq!(process(1), "system_u:system_r:my_t:s0:c1,c2");
    assert_eq!(process(2), "system_u:system_r:container_t:s0:c3,c4");
    let labelling = PodLabelling::new(&contexts(), &spec).unwrap();
    assert_eq!(labelling.level.as_deref(), Some("s0:c1,c2"));
    assert_eq!(labelling.container_levels, ["s0:c3,c4", "s0:c5,c6"]);
    assert_eq!(labelling.file_label("s0:c1,c2"), "system_u:object_r:container_file_t:s0:c1,c2");
    let malformed: PodSpec = serde_json::from_value(json!({
        "securityContext": {"seLinuxOptions": {"level": "x"}}, "containers": [],
    }))
    .unwrap();
    assert!(PodLabelling::new(&contexts(), &malformed).is_err());
}

#[test]
fn each_number_is_another_level() {
    assert_eq!([0, 1, 2, 3].map(level), ["s0:c0,c1", "s0:c0,c2", "s0:c1,c2", "s0:c0,c3"]);
    // The last pair, c1022,c1023, is not used.
    assert_eq!(
        (level(CATEGORY_PAIRS - 1), level(CATEGORY_PAIRS)),
        ("s0:c1021,c1023".to_owned(), "s0:c1022,c1023".to_owned())
    );
}

#[test]
fn no_two_pods_have_one_level() {
    let mut used = BTreeSet::new();
    for expected in ["s0:c0,c2", "s0:c1,c2", "s0:c0,c3"] {
        let given = allocate(1, &used).unwrap();
        assert_eq!(given, expected);
        used.insert(given);
    }
    assert_eq!(allocate(CATEGORY_PAIRS - 1, &used).as_deref(), Some("s0:c1021,c1023"));
    used.insert("s0:c1021,c1023".to_owned());
    assert_eq!(allocate(CATEGORY_PAIRS - 1, &used).as_deref(), Some("s0:c0,c1"));
    assert_eq!(allocate(CATEGORY_PAIRS, &used).as_deref(), Some("s0:c0,c1"));
    assert!(allocate(u32::MAX, &used).is_some());
}
