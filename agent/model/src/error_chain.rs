//! An error together with its causes.

use std::error::Error;
use std::io;
use std::iter::successors;

/// The error and its causes in one line. A cause that the text already contains is left out, because many errors
/// repeat theirs.
pub fn error_chain(error: &dyn Error) -> String {
    let causes = successors(error.source(), |cause| (*cause).source());
    causes
        .map(ToString::to_string)
        .fold(error.to_string(), |text, cause| if text.contains(&cause) { text } else { format!("{text}: {cause}") })
}

/// The error and its causes, the innermost last. Includes the error that an `io::Error` wraps, which it does not name
/// as its source.
pub fn causes<'a>(error: &'a (dyn Error + 'static)) -> impl Iterator<Item = &'a (dyn Error + 'static)> {
    successors(Some(error), |error: &&'a (dyn Error + 'static)| {
        let error: &'a (dyn Error + 'static) = *error;
        let wrapped = error.downcast_ref::<io::Error>().and_then(io::Error::get_ref);
        wrapped.map(|inner| inner as &(dyn Error + 'static)).or_else(|| error.source())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, thiserror::Error)]
    #[error("{text}")]
    struct Layer {
        text: &'static str,
        #[source]
        source: Option<Box<dyn Error + Send + Sync>>,
    }

    fn layers(texts: &[&'static str]) -> Option<Box<dyn Error + Send + Sync>> {
        let (text, inner) = texts.split_first()?;
        Some(Box::new(Layer { text, source: layers(inner) }))
    }

    #[test]
    fn causes_follow_their_error_unless_it_names_them() {
        let table: [(&[&str], &str); 3] = [
            (&["open a"], "open a"),
            (&["open a", "denied"], "open a: denied"),
            (&["open a: denied", "denied", "EPERM"], "open a: denied: EPERM"),
        ];
        for (texts, expected) in table {
            let chain = layers(texts).map(|error| error_chain(&*error));
            assert_eq!(chain.as_deref(), Some(expected));
        }
    }

    #[test]
    fn an_error_inside_an_io_error_is_a_cause() {
        let outer = io::Error::other(io::Error::other("inner"));
        assert_eq!(causes(&outer).count(), 3);
    }
}
