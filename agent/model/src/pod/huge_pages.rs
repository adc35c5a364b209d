//! Huge pages: resources of a pod (`hugepages-2Mi`), the medium of an emptyDir (`HugePages-2Mi`), and their sizes' names.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::api::core::v1::{Container, PodSpec};

use super::qos::{all_containers, amount};
use super::quantity::{Amount, parse};
use super::totals::{Amounts, pod_request};

/// The prefix of the resource's name; the size of one page follows.
pub const HUGE_PAGES: &str = "hugepages-";
/// The medium of an emptyDir on pages of the only size that the pod requests.
pub const MEDIUM: &str = "HugePages";
/// The prefix of a medium that specifies the size of its pages.
pub const MEDIUM_OF_SIZE: &str = "HugePages-";

/// The page size in bytes of the resource `name`; `None` if it is another resource, or has no size.
pub fn page_size(name: &str) -> Option<u64> {
    size(name.strip_prefix(HUGE_PAGES)?)
}

/// Kubernetes' name of the resource with pages of so many bytes.
pub fn resource_name(page_size: u64) -> String {
    format!("{HUGE_PAGES}{}", binary(page_size))
}

/// The kernel's name of pages of so many bytes, as in the files of the hugetlb controller: `2MB`, `1GB`.
pub fn kernel_name(page_size: u64) -> String {
    let (number, unit) = in_largest_unit(page_size);
    format!("{number}{}B", unit.trim_end_matches('i'))
}

/// A number of bytes as a quantity in the largest binary unit that divides it: `2Mi`, `3000`, `0`.
pub fn binary(bytes: u64) -> String {
    let (number, unit) = in_largest_unit(bytes);
    format!("{number}{unit}")
}

fn in_largest_unit(bytes: u64) -> (u64, &'static str) {
    let units = ["Ei", "Pi", "Ti", "Gi", "Mi", "Ki"].into_iter().zip([60, 50, 40, 30, 20, 10]);
    let mut whole = units.filter(|(_, shift)| bytes != 0 && bytes.trailing_zeros() >= *shift);
    whole.next().map_or((bytes, ""), |(unit, shift)| (bytes >> shift, unit))
}

fn size(text: &str) -> Option<u64> {
    u64::try_from(parse(text).ok()?.units()).ok().filter(|size| *size > 0)
}

/// The most that the pod requests at one time, by page size. Its limits are the same.
pub fn requests(spec: &PodSpec) -> BTreeMap<u64, Amount> {
    let mut requested = BTreeMap::new();
    for name in names(spec) {
        let Some(size) = page_size(name) else { continue };
        let sum: &mut Amount = requested.entry(size).or_default();
        *sum = *sum + pod_request(spec, name);
    }
    requested
}

/// The limits of a container in bytes, by page size: its own, and for sizes that it does not specify the pod's.
pub fn container_limits(spec: &PodSpec, container: &Container) -> BTreeMap<u64, u64> {
    let of_pod = spec.resources.as_ref().and_then(|resources| resources.limits.as_ref());
    let of_container = container.resources.as_ref().and_then(|resources| resources.limits.as_ref());
    of_pod.into_iter().chain(of_container).flat_map(sizes).collect()
}

/// The size of the pages of an emptyDir with this medium, by kubelet's rules.
///
/// # Errors
///
/// kubelet's message: the pod requests no such pages, or pages of several sizes for a medium that specifies none.
pub fn volume_page_size(spec: &PodSpec, medium: &str) -> Result<u64, String> {
    let named = match medium.strip_prefix(MEDIUM_OF_SIZE) {
        Some(text) => Some(size(text).ok_or_else(|| format!("medium {medium}: {text:?} is not a page size"))?),
        None => None,
    };
    let requested: BTreeSet<u64> = names(spec).into_iter().filter_map(page_size).collect();
    let mut fitting = requested.into_iter().filter(|size| named.is_none_or(|named| named == *size));
    match (fitting.next(), fitting.next()) {
        (Some(size), None) => Ok(size),
        (Some(_), Some(_)) => {
            Err(format!("medium: {medium} can't be used if container requests multiple huge page sizes"))
        }
        (None, _) => Err(format!(
            "medium {medium}: hugePages storage requested, but there is no resource request for huge pages"
        )),
    }
}

/// The names of such resources in the pod's own resources, its containers' and its overhead.
fn names(spec: &PodSpec) -> BTreeSet<&str> {
    let of_pod = spec.resources.iter();
    let all = of_pod.chain(all_containers(spec).filter_map(|container| container.resources.as_ref()));
    let lists = all.flat_map(|resources| [resources.limits.as_ref(), resources.requests.as_ref()]);
    let lists = lists.chain([spec.overhead.as_ref()]).flatten();
    lists.flat_map(|list| list.keys()).map(String::as_str).filter(|name| name.starts_with(HUGE_PAGES)).collect()
}

fn sizes(limits: &Amounts) -> impl Iterator<Item = (u64, u64)> {
    limits.keys().filter_map(|name| {
        let bytes = amount(Some(limits), name).units();
        Some((page_size(name)?, u64::try_from(bytes).unwrap_or(0)))
    })
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    const MIB: u64 = 1 << 20;

    fn spec(value: Value) -> PodSpec {
        serde_json::from_value(value).unwrap()
    }

    fn container(limits: Value) -> Value {
        json!({"name": "c", "resources": {"limits": limits}})
    }

    #[test]
    fn sizes_have_a_name_in_kubernetes_and_one_in_the_kernel() {
        let table = [
            (64 << 10, "64Ki", "64KB"),
            (2 * MIB, "2Mi", "2MB"),
            (512 * MIB, "512Mi", "512MB"),
            (1 << 30, "1Gi", "1GB"),
        ];
        for (size, quantity, kernel) in table {
            assert_eq!((binary(size), kernel_name(size)), (quantity.to_owned(), kernel.to_owned()));
            assert_eq!(page_size(&resource_name(size)), Some(size));
        }
        assert_eq!((binary(0), binary(3000)), ("0".to_owned(), "3000".to_owned()));
        for other in ["memory", "hugepages-", "hugepages-0", "hugepages-x", "example.com/hugepages-2Mi"] {
            assert_eq!(page_size(other), None, "{other}");
        }
    }

    #[test]
    fn a_pod_requests_the_sum_of_its_containers_or_what_it_says_itself() {
        let two = json!([
            container(json!({"hugepages-2Mi": "4Mi", "hugepages-1Gi": "1Gi"})),
            container(json!({"hugepages-2Mi": "2Mi"}))
        ]);
        let init = json!([container(json!({"hugepages-2Mi": "16Mi"}))]);
        let units = |spec: &PodSpec| -> Vec<(u64, i64)> {
            requests(spec).into_iter().map(|(size, amount)| (size, amount.units())).collect()
        };
        let pod = spec(json!({"containers": two, "initContainers": init}));
        assert_eq!(units(&pod), [(2 * MIB, 16 << 20), (1 << 30, 1 << 30)]);
        let pod = spec(json!({"containers": two, "resources": {"limits": {"hugepages-2Mi": "32Mi"}}}));
        assert_eq!(units(&pod)[0], (2 * MIB, 32 << 20));
        assert_eq!(units(&spec(json!({"containers": [container(json!({"memory": "1Gi"}))]}))), []);
    }

    #[test]
    fn a_container_has_its_own_limit_or_the_pods() {
        let pod = spec(json!({
            "resources": {"limits": {"hugepages-2Mi": "32Mi", "hugepages-1Gi": "2Gi"}},
            "containers": [container(json!({"hugepages-2Mi": "4Mi", "memory": "1Gi"})), container(json!({}))],
        }));
        let limits_of = |index: usize| container_limits(&pod, &pod.containers[index]);
        assert_eq!(limits_of(0), BTreeMap::from([(2 * MIB, 4 * MIB), (1 << 30, 2 << 30)]));
        assert_eq!(limits_of(1), BTreeMap::from([(2 * MIB, 32 * MIB), (1 << 30, 2 << 30)]));
    }

    #[test]
    fn a_volumes_pages_are_those_that_the_pod_requests() {
        let pod = |sizes: &[&str]| {
            let limits: serde_json::Map<String, Value> =
                sizes.iter().map(|size| (format!("hugepages-{size}"), json!(size))).collect();
            spec(json!({"containers": [container(Value::Object(limits))]}))
        };
        let size_for = |sizes: &[&str], medium: &str| volume_page_size(&pod(sizes), medium);
        assert_eq!(size_for(&["2Mi"], "HugePages"), Ok(2 * MIB));
        assert_eq!(size_for(&["2Mi", "1Gi"], "HugePages-1Gi"), Ok(1 << 30));
        assert_eq!(size_for(&["2Mi"], "HugePages-2048Ki"), Ok(2 * MIB));
        let several = "medium: HugePages can't be used if container requests multiple huge page sizes";
        assert_eq!(size_for(&["2Mi", "1Gi"], "HugePages"), Err(several.to_owned()));
        for (sizes, medium) in [(&[][..], "HugePages"), (&["2Mi"][..], "HugePages-1Gi")] {
            let none = "hugePages storage requested, but there is no resource request for huge pages";
            assert_eq!(size_for(sizes, medium), Err(format!("medium {medium}: {none}")));
        }
        assert!(size_for(&["2Mi"], "HugePages-big").is_err());
    }
}
