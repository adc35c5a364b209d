//! ConfigMaps and Secrets of the push source. As in every source, only its own pods can use them.

use std::sync::Arc;

use super::{PushSource, Stored, Verb};
use limpet_core::source::SourceSnapshot;
use limpet_core::source::push::DeletedObject;
use limpet_core::source::push_error::PushError;
use limpet_core::source::resource::Resource;
use limpet_model::object::{ObjectKey, ObjectRecord, references};
use limpet_model::source::SourceKind;

impl PushSource {
    pub(super) async fn put_object(
        &mut self,
        record: Arc<ObjectRecord>,
        publish: &impl Fn(Arc<SourceSnapshot>),
    ) -> Result<Stored<ObjectRecord>, PushError> {
        let verb = match self.snapshot.objects.get(&record.key) {
            Some(before) if **before == *record => {
                return Ok(Stored { record: Arc::clone(before), verb: Verb::Unchanged });
            }
            Some(before) => match before.forbids(&record) {
                Some(fault) => return Err(PushError::Invalid(vec![fault])),
                None => Verb::Configured,
            },
            None => Verb::Created,
        };
        self.commit(&record.key, Some(vec![record.manifest()]), None).await?;
        self.edits.object(record.key.clone());
        self.snapshot.objects.insert(record.key.clone(), Arc::clone(&record));
        self.snapshot.incarnations.note(&record.key, true);
        self.publish(None, publish);
        Ok(Stored { record, verb })
    }

    pub(super) async fn delete_object(
        &mut self,
        key: ObjectKey,
        publish: &impl Fn(Arc<SourceSnapshot>),
    ) -> Result<DeletedObject, PushError> {
        let Some(record) = self.snapshot.objects.get(&key).cloned() else { return Err(self.no_such_object(&key)) };
        self.commit(&key, None, None).await?;
        self.edits.object(key.clone());
        self.snapshot.objects.remove(&key);
        self.snapshot.incarnations.note(&key, false);
        self.publish(None, publish);
        let staying = self.snapshot.pods.values().filter(|pod| !self.terminating.contains(&pod.key));
        let referring = staying.filter(|pod| references(pod).contains(&key));
        Ok(DeletedObject { record, referred_by: referring.map(|pod| pod.key.clone()).collect() })
    }

    /// Why there is no object of that key to delete.
    fn no_such_object(&self, key: &ObjectKey) -> PushError {
        let snapshots = self.context.slots.load();
        let of_another = SourceKind::ALL.into_iter().zip(&snapshots);
        match of_another.filter_map(|(by, snapshot)| Some((by, snapshot.objects.get(key)?))).next() {
            Some((by, object)) => {
                PushError::NotPushed { what: key.to_string(), by, origin: Arc::clone(&object.origin) }
            }
            None => PushError::NotFound { resource: Resource::Object(key.kind), name: key.name.to_string() },
        }
    }
}
