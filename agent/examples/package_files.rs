//! Writes the files of a package that follow from the command line and the configuration: manual pages, completions
//! and JSON schemas. `cargo xtask release` runs it: `cargo run --package limpet --example package_files -- DIRECTORY`.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::CommandFactory as _;
use clap_complete::env::Shells;
use limpet::cli::Cli;
use limpet::config::schema;
use serde_json::Value;

/// The shells that packages have completions for.
const SHELLS: [&str; 3] = ["bash", "fish", "zsh"];

fn main() -> ExitCode {
    let Some(directory) = std::env::args_os().nth(1).map(PathBuf::from) else {
        eprintln!("usage: package_files DIRECTORY");
        return ExitCode::from(2);
    };
    match write(&directory) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {}: {error}", directory.display());
            ExitCode::FAILURE
        }
    }
}

fn write(directory: &Path) -> io::Result<()> {
    let [pages, completions, schemas] = ["man", "completions", "schemas"].map(|name| directory.join(name));
    for subdirectory in [&pages, &completions, &schemas] {
        fs::create_dir_all(subdirectory)?;
    }
    clap_mangen::generate_to(Cli::command(), &pages)?;
    fs::write(pages.join("limpet.yaml.5"), configuration_page())?;
    let shells = Shells::builtins();
    for name in SHELLS {
        let mut script = Vec::new();
        let shell = shells.completer(name).ok_or_else(|| io::Error::other(name))?;
        shell.write_registration("COMPLETE", "limpet", "limpet", "limpet", &mut script)?;
        fs::write(completions.join(name), script)?;
    }
    for (name, schema) in [("LimpetConfiguration", schema::limpet()), ("KubeletConfiguration", schema::kubelet())] {
        fs::write(schemas.join(format!("{name}.json")), format!("{schema:#}\n"))?;
    }
    Ok(())
}

/// limpet.yaml(5): the keys of the configuration file.
fn configuration_page() -> String {
    let version = env!("CARGO_PKG_VERSION");
    let mut page = format!(
        ".TH limpet.yaml 5 \"\" \"limpet {version}\" \"Configuration\"\n\
         .SH NAME\nlimpet.yaml \\- configuration of the limpet agent\n\
         .SH SYNOPSIS\n/etc/limpet/config.yaml\n\
         .SH DESCRIPTION\n\
         The file that \\fBlimpet run \\-\\-config\\fR reads. It has one YAML document of kubelet's kind KubeletConfiguration, and may \
         have a second one of kind LimpetConfiguration for settings that kubelet does not have. An unknown key is an error; a key \
         of kubelet's that has no effect in limpet is a warning.\n"
    );
    for schema in [schema::kubelet(), schema::limpet()] {
        let [kind, version] = [&schema["title"], &schema["properties"]["apiVersion"]["const"]];
        let (kind, version) = (kind.as_str().unwrap_or_default(), version.as_str().unwrap_or_default());
        page.push_str(&format!(".SH {}\napiVersion: {}\n", roff(&kind.to_uppercase()), roff(version)));
        keys(&schema, "", &mut page);
    }
    page.push_str(".SH FILES\n.TP\n/etc/limpet/manifests\nPod manifests.\n.TP\n/usr/share/limpet/schemas\nJSON schemas of both documents.\n");
    page.push_str(".SH SEE ALSO\nlimpet(1), limpet\\-run(1)\n");
    page
}

/// A paragraph for each key of `schema`, those of objects after their parent's name.
fn keys(schema: &Value, parent: &str, page: &mut String) {
    for (name, property) in schema["properties"].as_object().into_iter().flatten() {
        if property.get("properties").is_some() {
            keys(property, &format!("{parent}{name}."), page);
        } else if let Some(description) = property["description"].as_str() {
            page.push_str(&format!(".TP\n\\fB{}\\fR\n{}\n", roff(&format!("{parent}{name}")), roff(description)));
        }
    }
}

/// Text as roff shows it: no character of it is a request or an escape.
fn roff(text: &str) -> String {
    let escaped = text.replace('\\', "\\e").replace('-', "\\-").replace('\'', "\\(aq").replace('`', "");
    match escaped.starts_with('.') {
        true => format!("\\&{escaped}"),
        false => escaped,
    }
}
