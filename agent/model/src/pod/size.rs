//! The size of a Pod: at most what etcd accepts in one request, which bounds every Pod that an apiserver accepts.
//! Each container carries its Pod's manifest in containerd, and every reading of containerd's state reads them all.

use serde_json::Value;

use crate::pod::{Fault, field_path};

/// etcd's default for `--max-request-bytes`.
pub(crate) const MAX_POD: usize = 1_536 << 10;

/// The fault of a Pod that has `size` bytes in its canonical form, if that is too much.
pub(crate) fn check(value: &Value, size: usize) -> Option<Fault> {
    (size > MAX_POD).then(|| {
        let message = format!("the largest part of a Pod of {size} bytes; a Pod may have {MAX_POD}");
        Fault::error(largest_part(value), message)
            .with_remedy("move the data to a ConfigMap or Secret, to a file on the node or into the image")
    })
}

/// The innermost field that holds more than half of `value`.
fn largest_part(value: &Value) -> String {
    let half = length(value) / 2;
    let (mut path, mut value) = (String::new(), value);
    loop {
        let (step, part) = match value {
            Value::Object(map) => {
                let Some((name, part)) = map.iter().find(|(_, part)| length(part) > half) else { return path };
                (field_path(&path, name), part)
            }
            Value::Array(items) => {
                let large = items.iter().enumerate().find(|(_, part)| length(part) > half);
                let Some((index, part)) = large else { return path };
                (format!("{path}[{index}]"), part)
            }
            _ => return path,
        };
        (path, value) = (step, part);
    }
}

/// Bytes as JSON.
fn length(value: &Value) -> usize {
    value.to_string().len()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_pod_beyond_the_limit_is_refused_with_its_largest_part() {
        let env =
            |size: usize| json!([{ "name": "SMALL", "value": "x" }, { "name": "LARGE", "value": "x".repeat(size) }]);
        let pod = |size: usize| json!({ "spec": { "hostNetwork": true, "containers": [{ "name": "main", "env": env(size) }] } });
        let small = pod(100);
        assert_eq!(check(&small, MAX_POD), None);
        let fault = check(&pod(10_000), MAX_POD + 1).map(|fault| fault.to_string());
        let expected = "spec.containers[0].env[1].value: the largest part of a Pod of 1572865 bytes; a Pod may have 1572864; \
                        move the data to a ConfigMap or Secret, to a file on the node or into the image";
        assert_eq!(fault.as_deref(), Some(expected));
        let many = json!({ "spec": { "hostAliases": vec![json!({ "ip": "10.0.0.1" }); 100] } });
        assert_eq!(largest_part(&many), "spec.hostAliases");
    }
}
