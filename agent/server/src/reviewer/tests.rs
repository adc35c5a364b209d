//! Which reviews are repeated and which are cached, with an apiserver of scripted answers.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};

use futures_util::future::{BoxFuture, join_all};
use limpet_apiserver_client::RequestError;

use super::*;

/// An apiserver that knows the token `anna` and lets her read metrics. Counts the reviews.
#[derive(Default)]
pub(crate) struct Scripted {
    pub(crate) asked: AtomicUsize,
    pub(crate) failure: Mutex<Option<Failure>>,
}

/// How an apiserver fails.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Failure {
    Unreachable,
    Refuses,
    Hangs,
}

impl Scripted {
    pub(crate) fn fail(&self, failure: impl Into<Option<Failure>>) {
        *self.failure.lock().unwrap() = failure.into();
    }

    async fn ask(&self) -> Result<(), ReviewError> {
        self.asked.fetch_add(1, Ordering::Relaxed);
        let failure = *self.failure.lock().unwrap();
        match failure {
            None => Ok(()),
            Some(Failure::Unreachable) => Err(RequestError::Unreachable("refused".to_owned()).into()),
            Some(Failure::Refuses) => Err(ReviewError::Undecided("no".to_owned())),
            Some(Failure::Hangs) => std::future::pending().await,
        }
    }
}

impl Reviews for Scripted {
    fn token<'a>(&'a self, token: &'a str) -> BoxFuture<'a, Result<Option<User>, ReviewError>> {
        Box::pin(async move {
            self.ask().await?;
            let user = || User {
                name: token.to_owned(),
                uid: String::new(),
                groups: vec!["readers".to_owned()],
                extra: BTreeMap::new(),
            };
            Ok((token == "anna").then(user))
        })
    }

    fn access<'a>(&'a self, user: &'a User, access: Access<'a>) -> BoxFuture<'a, Result<bool, ReviewError>> {
        Box::pin(async move {
            self.ask().await?;
            Ok(user.name == "anna" && (access.verb, access.subresource) == ("get", "metrics"))
        })
    }
}

fn reviewer() -> (Arc<Scripted>, Reviewer) {
    let scripted: Arc<Scripted> = Arc::default();
    let reviewer = Reviewer::new(Arc::clone(&scripted) as Arc<dyn Reviews>, &ServerSettings::default());
    (scripted, reviewer)
}

async fn name(reviewer: &Reviewer, token: &str) -> Result<Option<String>, ReviewError> {
    Ok(reviewer.user(token).await?.map(|user| user.name.clone()))
}

fn access(subresource: &str) -> Access<'_> {
    Access { verb: "get", node: "edge1", subresource }
}

#[tokio::test(start_paused = true)]
async fn answers_are_remembered_for_kubelets_times() {
    let (apiserver, reviewer) = reviewer();
    let asked = || apiserver.asked.swap(0, Ordering::Relaxed);
    for _ in 0..3 {
        assert_eq!(name(&reviewer, "anna").await.unwrap().as_deref(), Some("anna"));
        assert_eq!(name(&reviewer, "mallory").await.unwrap(), None);
    }
    assert_eq!(asked(), 2);
    tokio::time::advance(Duration::from_secs(121)).await;
    assert_eq!(name(&reviewer, "anna").await.unwrap().as_deref(), Some("anna"));
    assert_eq!(asked(), 1);

    let anna = reviewer.user("anna").await.unwrap().unwrap();
    for _ in 0..3 {
        assert!(reviewer.is_allowed(&anna, access("metrics")).await.unwrap());
        assert!(!reviewer.is_allowed(&anna, access("proxy")).await.unwrap());
    }
    let other = User { groups: Vec::new(), ..User::clone(&anna) };
    assert!(reviewer.is_allowed(&other, access("metrics")).await.unwrap());
    assert_eq!(asked(), 3, "one for each user and access");
    tokio::time::advance(Duration::from_secs(31)).await;
    assert!(reviewer.is_allowed(&anna, access("metrics")).await.unwrap());
    assert!(!reviewer.is_allowed(&anna, access("proxy")).await.unwrap());
    assert_eq!(asked(), 1, "what was denied is asked again sooner");
}

#[tokio::test(start_paused = true)]
async fn without_the_apiserver_what_is_remembered_counts_and_nothing_else() {
    let (apiserver, reviewer) = reviewer();
    let anna = reviewer.user("anna").await.unwrap().unwrap();
    apiserver.fail(Failure::Unreachable);
    apiserver.asked.store(0, Ordering::Relaxed);
    assert!(reviewer.user("anna").await.unwrap().is_some());
    for _ in 0..100 {
        assert!(reviewer.user("mallory").await.is_err());
        assert!(reviewer.is_allowed(&anna, access("metrics")).await.is_err());
    }
    assert_eq!(apiserver.asked.load(Ordering::Relaxed), 1, "nobody is asked again for a moment");
    apiserver.fail(None);
    tokio::time::advance(UNREACHABLE_PAUSE).await;
    assert_eq!(name(&reviewer, "mallory").await.unwrap(), None, "a failure is not remembered");
    apiserver.fail(Failure::Refuses);
    assert!(reviewer.is_allowed(&anna, access("metrics")).await.is_err());
    apiserver.fail(None);
    assert!(reviewer.is_allowed(&anna, access("metrics")).await.unwrap());
}

#[tokio::test(start_paused = true)]
async fn a_review_that_hangs_ends_and_few_are_waited_for_at_once() {
    let (apiserver, reviewer) = reviewer();
    apiserver.fail(Failure::Hangs);
    let begin = Instant::now();
    let tokens: Vec<String> = (0..100).map(|number| number.to_string()).collect();
    let answers = join_all(tokens.iter().map(|token| reviewer.user(token))).await;
    assert!(answers.iter().all(Result::is_err) && begin.elapsed() < REVIEW_TIMEOUT * 2);
    assert_eq!(apiserver.asked.load(Ordering::Relaxed), MAX_REVIEWS);
    apiserver.fail(None);
    assert_eq!(name(&reviewer, "anna").await.unwrap().as_deref(), Some("anna"));
}

#[tokio::test(start_paused = true)]
async fn a_flood_of_tokens_pushes_no_user_out_and_takes_bounded_memory() {
    let (apiserver, reviewer) = reviewer();
    reviewer.user("anna").await.unwrap();
    for number in 0..MAX_REMEMBERED.get() * 3 {
        assert!(reviewer.user(&format!("guess {number}")).await.unwrap().is_none());
    }
    apiserver.fail(Failure::Unreachable);
    assert!(reviewer.user("anna").await.unwrap().is_some());
    assert!(reviewer.user("guess 0").await.is_err(), "forgotten");
}
