//! The requests of a node: paths, verbs and bodies.

use form_urlencoded::Serializer;
use hyper::http;
use serde_json::Value;

const JSON: &str = "application/json";
/// Accepts JSON as well, for a proxy that does not support protobuf.
const METADATA_IN_PROTOBUF: &str =
    "application/vnd.kubernetes.protobuf;as=PartialObjectMetadata;g=meta.k8s.io;v=v1,application/json";

/// The object or collection of a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Resource {
    /// All Nodes.
    Nodes,
    Node(String),
    NodeStatus(String),
    /// All Leases of a namespace.
    Leases(String),
    /// One Lease: namespace and name.
    Lease(String, String),
    /// The Pods of every namespace.
    AllPods,
    /// The Pods of one namespace.
    Pods(String),
    /// One Pod: namespace and name.
    Pod(String, String),
    /// The status of a Pod: namespace and name.
    PodStatus(String, String),
    /// All ConfigMaps of a namespace.
    ConfigMaps(String),
    /// All Secrets of a namespace.
    Secrets(String),
    /// All Services of a namespace.
    Services(String),
    /// One Service: namespace and name.
    Service(String, String),
    /// One PersistentVolumeClaim: namespace and name.
    PersistentVolumeClaim(String, String),
    /// The status of a PersistentVolumeClaim: namespace and name.
    PersistentVolumeClaimStatus(String, String),
    /// One PersistentVolume.
    PersistentVolume(String),
    /// One VolumeAttachment.
    VolumeAttachment(String),
    /// One CSIDriver.
    CsiDriver(String),
    /// All CSINodes.
    CsiNodes,
    /// One CSINode.
    CsiNode(String),
    /// One Secret: namespace and name.
    Secret(String, String),
    /// One ServiceAccount: namespace and name.
    ServiceAccount(String, String),
    /// The tokens of a service account: namespace and name.
    ServiceAccountToken(String, String),
    /// All PodCertificateRequests of a namespace.
    PodCertificateRequests(String),
    /// All Events of a namespace.
    Events(String),
    /// One Event: namespace and name.
    Event(String, String),
    /// All ClusterTrustBundles.
    ClusterTrustBundles,
    /// All RuntimeClasses.
    RuntimeClasses,
    /// All CertificateSigningRequests.
    CertificateSigningRequests,
    /// One CertificateSigningRequest.
    CertificateSigningRequest(String),
    /// Asks whose token this is; answered and not stored.
    TokenReviews,
    /// Asks whether a user may do something; answered and not stored.
    SubjectAccessReviews,
}

impl Resource {
    /// Its kind, for metrics.
    pub fn kind(&self) -> &'static str {
        match self {
            Self::Nodes | Self::Node(_) => "nodes",
            Self::NodeStatus(_) => "nodes/status",
            Self::Leases(_) | Self::Lease(..) => "leases",
            Self::AllPods | Self::Pods(_) | Self::Pod(..) => "pods",
            Self::PodStatus(..) => "pods/status",
            Self::ConfigMaps(_) => "configmaps",
            Self::Secrets(_) | Self::Secret(..) => "secrets",
            Self::Services(_) | Self::Service(..) => "services",
            Self::PersistentVolumeClaim(..) => "persistentvolumeclaims",
            Self::PersistentVolumeClaimStatus(..) => "persistentvolumeclaims/status",
            Self::PersistentVolume(_) => "persistentvolumes",
            Self::VolumeAttachment(_) => "volumeattachments",
            Self::CsiDriver(_) => "csidrivers",
            Self::CsiNodes | Self::CsiNode(_) => "csinodes",
            Self::ServiceAccount(..) => "serviceaccounts",
            Self::ServiceAccountToken(..) => "serviceaccounts/token",
            Self::PodCertificateRequests(_) => "podcertificaterequests",
            Self::Events(_) | Self::Event(..) => "events",
            Self::ClusterTrustBundles => "clustertrustbundles",
            Self::RuntimeClasses => "runtimeclasses",
            Self::CertificateSigningRequests | Self::CertificateSigningRequest(_) => "certificatesigningrequests",
            Self::TokenReviews => "tokenreviews",
            Self::SubjectAccessReviews => "subjectaccessreviews",
        }
    }

    /// Whether its watches have bookmarks, one a minute. A bookmark saves a list at the next watch if the server has
    /// dropped the last change's version; among a node's watches only Pods change so often.
    pub fn has_bookmarks(&self) -> bool {
        matches!(self, Self::AllPods)
    }

    /// Its path. Names in Kubernetes need no escaping.
    pub fn path(&self) -> String {
        match self {
            Self::Nodes => "/api/v1/nodes".to_owned(),
            Self::Node(name) => format!("/api/v1/nodes/{name}"),
            Self::NodeStatus(name) => format!("/api/v1/nodes/{name}/status"),
            Self::Leases(namespace) => format!("/apis/coordination.k8s.io/v1/namespaces/{namespace}/leases"),
            Self::Lease(namespace, name) => {
                format!("/apis/coordination.k8s.io/v1/namespaces/{namespace}/leases/{name}")
            }
            Self::AllPods => "/api/v1/pods".to_owned(),
            Self::Pods(namespace) => format!("/api/v1/namespaces/{namespace}/pods"),
            Self::Pod(namespace, name) => format!("/api/v1/namespaces/{namespace}/pods/{name}"),
            Self::PodStatus(namespace, name) => format!("/api/v1/namespaces/{namespace}/pods/{name}/status"),
            Self::ConfigMaps(namespace) => format!("/api/v1/namespaces/{namespace}/configmaps"),
            Self::Secrets(namespace) => format!("/api/v1/namespaces/{namespace}/secrets"),
            Self::Services(namespace) => format!("/api/v1/namespaces/{namespace}/services"),
            Self::Service(namespace, name) => format!("/api/v1/namespaces/{namespace}/services/{name}"),
            Self::PersistentVolumeClaim(namespace, name) => {
                format!("/api/v1/namespaces/{namespace}/persistentvolumeclaims/{name}")
            }
            Self::PersistentVolumeClaimStatus(namespace, name) => {
                format!("/api/v1/namespaces/{namespace}/persistentvolumeclaims/{name}/status")
            }
            Self::PersistentVolume(name) => format!("/api/v1/persistentvolumes/{name}"),
            Self::VolumeAttachment(name) => format!("/apis/storage.k8s.io/v1/volumeattachments/{name}"),
            Self::CsiDriver(name) => format!("/apis/storage.k8s.io/v1/csidrivers/{name}"),
            Self::CsiNodes => "/apis/storage.k8s.io/v1/csinodes".to_owned(),
            Self::CsiNode(name) => format!("/apis/storage.k8s.io/v1/csinodes/{name}"),
            Self::Secret(namespace, name) => format!("/api/v1/namespaces/{namespace}/secrets/{name}"),
            Self::ServiceAccount(namespace, name) => format!("/api/v1/namespaces/{namespace}/serviceaccounts/{name}"),
            Self::ServiceAccountToken(namespace, name) => {
                format!("/api/v1/namespaces/{namespace}/serviceaccounts/{name}/token")
            }
            Self::PodCertificateRequests(namespace) => {
                format!("/apis/certificates.k8s.io/v1/namespaces/{namespace}/podcertificaterequests")
            }
            Self::Events(namespace) => format!("/api/v1/namespaces/{namespace}/events"),
            Self::Event(namespace, name) => format!("/api/v1/namespaces/{namespace}/events/{name}"),
            Self::ClusterTrustBundles => "/apis/certificates.k8s.io/v1/clustertrustbundles".to_owned(),
            Self::RuntimeClasses => "/apis/node.k8s.io/v1/runtimeclasses".to_owned(),
            Self::CertificateSigningRequests => "/apis/certificates.k8s.io/v1/certificatesigningrequests".to_owned(),
            Self::CertificateSigningRequest(name) => {
                format!("/apis/certificates.k8s.io/v1/certificatesigningrequests/{name}")
            }
            Self::TokenReviews => "/apis/authentication.k8s.io/v1/tokenreviews".to_owned(),
            Self::SubjectAccessReviews => "/apis/authorization.k8s.io/v1/subjectaccessreviews".to_owned(),
        }
    }
}

/// Selects objects by fields and labels, in the format of queries; empty selects all.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Selector {
    pub fields: String,
    pub labels: String,
}

impl Selector {
    /// Selects objects with these fields.
    pub fn of_fields(fields: impl Into<String>) -> Self {
        Self { fields: fields.into(), labels: String::new() }
    }

    pub fn of_name(name: &str) -> Self {
        Self::of_fields(format!("metadata.name={name}"))
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PatchType {
    /// RFC 7386.
    Merge,
    /// Kubernetes' strategic merge patch: lists are merged by key.
    Strategic,
}

/// Where a watch begins.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WatchFrom<'a> {
    /// With the changes after this version.
    Version(&'a str),
    /// With all objects at this version or a later one (`None`: the newest), as a streaming list, for which the
    /// server needs less memory than for a list. Bookmarks follow. A server without the feature `WatchList` refuses
    /// it.
    All(Option<&'a str>),
}

#[derive(Debug, Clone, PartialEq)]
pub struct Request {
    pub method: http::Method,
    pub resource: Resource,
    query: String,
    content_type: &'static str,
    accept: &'static str,
    body: Option<Value>,
}

impl Request {
    fn new(method: http::Method, resource: Resource, body: Option<Value>) -> Self {
        Self { method, resource, query: String::new(), content_type: JSON, accept: JSON, body }
    }

    /// Reads one object.
    pub fn get(resource: Resource) -> Self {
        Self::new(http::Method::GET, resource, None)
    }

    /// Lists the objects that the selector matches.
    pub fn list(resource: Resource, selector: &Selector) -> Self {
        let mut request = Self::new(http::Method::GET, resource, None);
        request.add_query(&[("fieldSelector", &selector.fields)]);
        if !selector.labels.is_empty() {
            request.add_query(&[("labelSelector", &selector.labels)]);
        }
        request
    }

    /// A list from the server's cache, at this version or a later one. For the newest list the server may have to
    /// query its database and read objects that do not match.
    pub fn list_since(resource: Resource, selector: &Selector, version: &str) -> Self {
        let mut request = Self::list(resource, selector);
        request.add_query(&[("resourceVersion", version), ("resourceVersionMatch", "NotOlderThan")]);
        request
    }

    /// Watches the objects that the selector matches for this many seconds.
    pub(crate) fn watch(resource: Resource, selector: &Selector, from: WatchFrom<'_>, seconds: u64) -> Self {
        let with_bookmarks = if resource.has_bookmarks() { "true" } else { "false" };
        let mut request = Self::list(resource, selector);
        let seconds = seconds.to_string();
        match from {
            WatchFrom::Version(version) => request.add_query(&[
                ("watch", "true"),
                ("allowWatchBookmarks", with_bookmarks),
                ("resourceVersion", version),
                ("timeoutSeconds", &seconds),
            ]),
            WatchFrom::All(version) => request.add_query(&[
                ("watch", "true"),
                ("allowWatchBookmarks", "true"),
                ("sendInitialEvents", "true"),
                ("resourceVersion", version.unwrap_or_default()),
                ("resourceVersionMatch", "NotOlderThan"),
                ("timeoutSeconds", &seconds),
            ]),
        }
        request
    }

    pub fn create(resource: Resource, body: Value) -> Self {
        Self::new(http::Method::POST, resource, Some(body))
    }

    pub fn patch(resource: Resource, patch: PatchType, body: Value) -> Self {
        let mut request = Self::new(http::Method::PATCH, resource, Some(body));
        request.content_type = match patch {
            PatchType::Merge => "application/merge-patch+json",
            PatchType::Strategic => "application/strategic-merge-patch+json",
        };
        request
    }

    /// Deletes the object with this UID without a grace period; the answer has only metadata.
    pub fn delete_now(resource: Resource, uid: &str) -> Self {
        let options = serde_json::json!({
            "apiVersion": "v1",
            "kind": "DeleteOptions",
            "gracePeriodSeconds": 0,
            "preconditions": { "uid": uid },
        });
        Self::new(http::Method::DELETE, resource, Some(options)).metadata_only()
    }

    /// The same, answered with only a part of the object's metadata, to save bytes: `uid`, `resourceVersion`, and
    /// whether there are `managedFields`.
    pub fn metadata_only(mut self) -> Self {
        self.accept = METADATA_IN_PROTOBUF;
        self
    }

    fn add_query(&mut self, parameters: &[(&str, &str)]) {
        self.query = Serializer::new(std::mem::take(&mut self.query)).extend_pairs(parameters).finish();
    }

    pub(crate) fn into_http(self) -> Result<http::Request<Vec<u8>>, http::Error> {
        let mut uri = self.resource.path();
        if !self.query.is_empty() {
            uri = format!("{uri}?{}", self.query);
        }
        let request = http::Request::builder()
            .method(self.method)
            .uri(uri)
            .header(http::header::ACCEPT, self.accept)
            .header(http::header::USER_AGENT, concat!("limpet/", env!("CARGO_PKG_VERSION")));
        match self.body {
            None => request.body(Vec::new()),
            Some(body) => {
                request.header(http::header::CONTENT_TYPE, self.content_type).body(body.to_string().into_bytes())
            }
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn requests_as_http_has_them() {
        let text = |text: &str| text.to_owned();
        let pod = || Resource::PodStatus(text("lab"), text("web-edge1"));
        let of_node = || Selector::of_fields("spec.nodeName=edge1");
        let table = [
            (
                Request::watch(Resource::AllPods, &of_node(), WatchFrom::Version("17"), 300),
                "GET /api/v1/pods?fieldSelector=spec.nodeName%3Dedge1&watch=true&allowWatchBookmarks=true&resourceVersion=17&timeoutSeconds=300",
                None,
            ),
            (
                Request::watch(Resource::Nodes, &Selector::of_name("edge1"), WatchFrom::Version("17"), 300),
                "GET /api/v1/nodes?fieldSelector=metadata.name%3Dedge1&watch=true&allowWatchBookmarks=false&resourceVersion=17&timeoutSeconds=300",
                None,
            ),
            (
                Request::watch(Resource::AllPods, &of_node(), WatchFrom::All(None), 300),
                "GET /api/v1/pods?fieldSelector=spec.nodeName%3Dedge1&watch=true&allowWatchBookmarks=true&sendInitialEvents=true&resourceVersion=&resourceVersionMatch=NotOlderThan&timeoutSeconds=300",
                None,
            ),
            (
                Request::watch(Resource::Services(text("lab")), &Selector::default(), WatchFrom::Version("17"), 1800),
                "GET /api/v1/namespaces/lab/services?fieldSelector=&watch=true&allowWatchBookmarks=false&resourceVersion=17&timeoutSeconds=1800",
                None,
            ),
            (
                Request::list(
                    Resource::ClusterTrustBundles,
                    &Selector { fields: text("spec.signerName=k8s.io/s"), labels: text("zone in (a,b)") },
                ),
                "GET /apis/certificates.k8s.io/v1/clustertrustbundles?fieldSelector=spec.signerName%3Dk8s.io%2Fs&labelSelector=zone+in+%28a%2Cb%29",
                None,
            ),
            (
                Request::list_since(Resource::AllPods, &of_node(), "17"),
                "GET /api/v1/pods?fieldSelector=spec.nodeName%3Dedge1&resourceVersion=17&resourceVersionMatch=NotOlderThan",
                None,
            ),
            (
                Request::patch(pod(), PatchType::Strategic, json!({})),
                "PATCH /api/v1/namespaces/lab/pods/web-edge1/status",
                Some("application/strategic-merge-patch+json"),
            ),
            (
                Request::create(Resource::Leases(text("kube-node-lease")), json!({})),
                "POST /apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases",
                Some("application/json"),
            ),
        ];
        for (request, line, content_type) in table {
            let http = request.into_http().unwrap();
            assert_eq!(format!("{} {}", http.method(), http.uri()), line);
            let header = http.headers().get("content-type").map(|value| value.to_str().unwrap());
            assert_eq!(header, content_type, "{line}");
        }
        let delete = Request::delete_now(Resource::Pod(text("lab"), text("web")), "u1").into_http().unwrap();
        let options: Value = serde_json::from_slice(delete.body()).unwrap();
        assert_eq!((&options["gracePeriodSeconds"], &options["preconditions"]), (&json!(0), &json!({ "uid": "u1" })));
        assert_eq!((pod().kind(), Resource::AllPods.kind()), ("pods/status", "pods"));
    }
}
