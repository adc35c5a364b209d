//! Where sockets and plugins are.

use super::*;

#[test]
fn the_socket_is_the_flag_s_before_the_run_directory_s() {
    let text = format!("{LIMPET_HEAD}runDirectory: /x\n");
    let root = tempfile::tempdir().unwrap();
    let file = root.path().join("config.yaml");
    std::fs::write(&file, text).unwrap();
    let flags = RunFlags { config: Some(file), ..RunFlags::default() };
    let socket = |flag: Option<&str>| {
        let flags = RunFlags { socket: flag.map(PathBuf::from), ..flags.clone() };
        load(&flags).unwrap().0.socket()
    };
    assert_eq!(socket(None), Path::new("/x/limpet.sock"));
    assert_eq!(socket(Some("/y/agent.sock")), Path::new("/y/agent.sock"));
    assert_eq!(socket(Some("agent.sock")), std::env::current_dir().unwrap().join("agent.sock"));
}

#[test]
fn the_socket_of_cri_is_moved_or_switched_off() {
    let cri = |line: &str| {
        let (config, _, _) = load_text(&format!("{LIMPET_HEAD}runDirectory: /x\n{line}"), &[]);
        config.map(|config| config.cri_socket()).map_err(|errors| errors.join("\n"))
    };
    let table = [
        ("", Some("/x/cri.sock")),
        ("criSocket: ''\n", Some("/x/cri.sock")),
        ("criSocket: true\n", Some("/x/cri.sock")),
        ("criSocket: /run/c.sock\n", Some("/run/c.sock")),
        ("criSocket: unix:///run/c.sock\n", Some("/run/c.sock")),
        ("criSocket: off\n", None),
        ("criSocket: 'off'\n", None),
    ];
    for (line, path) in table {
        assert_eq!(cri(line), Ok(path.map(PathBuf::from)), "{line}");
    }
    let error = cri("criSocket: cri.sock\n").unwrap_err();
    assert!(error.contains(r#"criSocket: "cri.sock" is neither off nor an absolute path"#), "{error}");
}

#[test]
fn plugins_are_where_kubelets_are_unless_a_kubelet_runs_too() {
    let plugins = |line: &str| {
        let (config, _, _) = load_text(&format!("{LIMPET_HEAD}{line}"), &[]);
        config.map(|config| config.plugin_dir()).map_err(|errors| errors.join("\n"))
    };
    let table = [
        ("", Some("/var/lib/kubelet")),
        ("pluginDirectory: true\n", Some("/var/lib/kubelet")),
        ("pluginDirectory: /p\n", Some("/p")),
        ("pluginDirectory: off\n", None),
        ("ignoreOtherAgents: true\n", None),
        ("ignoreOtherAgents: true\npluginDirectory: /p\n", Some("/p")),
    ];
    for (line, path) in table {
        assert_eq!(plugins(line), Ok(path.map(PathBuf::from)), "{line}");
    }
    let error = plugins("pluginDirectory: p\n").unwrap_err();
    assert!(error.contains(r#"pluginDirectory: "p" is neither off nor an absolute path"#), "{error}");
    let error = plugins("cdiSpecDirectories: [cdi]\n").unwrap_err();
    assert!(error.contains(r#"cdiSpecDirectories: "cdi" is not an absolute path"#), "{error}");
}
