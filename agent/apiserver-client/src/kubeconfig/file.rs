//! The text of a kubeconfig and its fields. As in client-go, an empty field counts as missing, files are relative to
//! the kubeconfig, and base64 may contain line breaks. Part of [`super`].

use std::fs::File;
use std::io::{self, Read as _};
use std::path::{self, Path};

use kube::config::{AuthInfo, Cluster, Kubeconfig};
use secrecy::{ExposeSecret as _, SecretString};

use super::{KubeconfigError, one_line};

/// The largest kubeconfig in bytes.
const MAX_FILE: u64 = 10 << 20;

/// Reads a file. Blocks.
pub(super) fn read(path: &Path) -> Result<Kubeconfig, KubeconfigError> {
    let mut bytes = Vec::new();
    File::open(path)
        .and_then(|file| file.take(MAX_FILE + 1).read_to_end(&mut bytes))
        .map_err(|error| KubeconfigError::file(path, remedy(&error)))?;
    if bytes.len() as u64 > MAX_FILE {
        return Err(KubeconfigError::file(path, format!("is no kubeconfig: it has more than {} MiB", MAX_FILE >> 20)));
    }
    let wrong = |cause: &str| KubeconfigError::file(path, format!("is not a kubeconfig: {cause}"));
    let text = text(bytes).ok_or_else(|| wrong("it is no text"))?;
    let mut file = Kubeconfig::from_yaml(&text).map_err(|error| wrong(&one_line(&error)))?;
    let dir = path.parent().unwrap_or(Path::new(""));
    file.clusters.iter_mut().filter_map(|named| named.cluster.as_mut()).for_each(|cluster| clean_cluster(cluster, dir));
    file.auth_infos.iter_mut().filter_map(|named| named.auth_info.as_mut()).for_each(|user| clean_user(user, dir));
    Ok(file)
}

fn remedy(error: &io::Error) -> String {
    match error.kind() {
        io::ErrorKind::NotFound => {
            "there is no such file; write one (kubeadm and k3s do), or start without --kubeconfig".to_owned()
        }
        _ => format!("cannot be read: {error}"),
    }
}

/// The text from UTF-8, or from UTF-16 with a byte order mark, as editors and shells on Windows write it.
fn text(bytes: Vec<u8>) -> Option<String> {
    let utf16 = |bytes: &[u8], unit: fn([u8; 2]) -> u16| {
        let (pairs, rest) = bytes.as_chunks::<2>();
        let text = String::from_utf16(&pairs.iter().map(|pair| unit(*pair)).collect::<Vec<_>>());
        text.ok().filter(|_| rest.is_empty())
    };
    match &bytes[..] {
        [0xff, 0xfe, rest @ ..] => utf16(rest, u16::from_le_bytes),
        [0xfe, 0xff, rest @ ..] => utf16(rest, u16::from_be_bytes),
        [0xef, 0xbb, 0xbf, rest @ ..] => str::from_utf8(rest).ok().map(str::to_owned),
        _ => String::from_utf8(bytes).ok(),
    }
}

fn clean_cluster(cluster: &mut Cluster, dir: &Path) {
    let Cluster { server, certificate_authority, certificate_authority_data, proxy_url, tls_server_name, .. } = cluster;
    for field in [server, &mut *certificate_authority, &mut *certificate_authority_data, proxy_url, tls_server_name] {
        drop_empty(field);
    }
    make_absolute(certificate_authority, dir);
    unwrap_lines(certificate_authority_data);
}

fn clean_user(user: &mut AuthInfo, dir: &Path) {
    let files = [&mut user.client_certificate, &mut user.client_key, &mut user.token_file];
    for file in files {
        drop_empty(file);
        make_absolute(file, dir);
    }
    for field in
        [&mut user.username, &mut user.client_certificate_data, &mut user.impersonate, &mut user.impersonate_uid]
    {
        drop_empty(field);
    }
    unwrap_lines(&mut user.client_certificate_data);
    for secret in [&mut user.token, &mut user.password, &mut user.client_key_data] {
        if secret.as_ref().is_some_and(|secret| secret.expose_secret().is_empty()) {
            *secret = None;
        }
    }
    let mut key = user.client_key_data.as_ref().map(|key| key.expose_secret().to_owned());
    unwrap_lines(&mut key);
    user.client_key_data = key.map(SecretString::from);
    // A bare name is looked up in PATH.
    if let Some(exec) = user.exec.as_mut() {
        let is_path = exec.command.as_deref().is_some_and(|command| command.contains(path::MAIN_SEPARATOR));
        if is_path {
            make_absolute(&mut exec.command, dir);
        }
    }
}

fn drop_empty(field: &mut Option<String>) {
    *field = field.take().filter(|text| !text.is_empty());
}

fn make_absolute(file: &mut Option<String>, dir: &Path) {
    *file = file.take().map(|file| dir.join(&file).to_str().map(str::to_owned).unwrap_or(file));
}

fn unwrap_lines(data: &mut Option<String>) {
    if let Some(data) = data {
        data.retain(|character| !character.is_ascii_whitespace());
    }
    drop_empty(data);
}
