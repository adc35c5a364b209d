//! `limpet images pull`: pulls an image and shows the progress on stderr, because stdout is for the result.

use std::io::{self, IsTerminal as _, Write as _};
use std::time::{Duration, Instant};

use crate::error::CliError;
use crate::screen::{Screen, printable};
use limpet_model::pull_progress::PullProgress;
use limpet_wire::images::{ImageNames, ImageRequest, PullEvent};
use limpet_wire::socket_client::{ClientError, SocketClient};

/// The shortest time between two progress lines without a terminal.
const PROGRESS_INTERVAL: Duration = Duration::from_secs(3);
const CLEAR: &str = "\r\x1b[K";

/// Pulls an image, and returns its name once it is here.
pub(super) async fn run(client: &SocketClient, image: String, screen: Screen) -> Result<ImageNames, CliError> {
    const PATH: &str = "/limpet/v1/images/pull?watch=1";
    let request = ImageRequest { image, pinned: false };
    let mut events = client.post_lines::<PullEvent>(PATH, &request).await?;
    let mut display = Display::new(&request.image, screen);
    let ended = loop {
        match events.next().await {
            Ok(Some(PullEvent::Progress(progress))) => display.show(progress)?,
            Ok(Some(PullEvent::Pulled(names))) => break Ok(names),
            Ok(Some(PullEvent::Failed(message))) => break Err(ClientError::Refused { status: 500, message }),
            Ok(None) => {
                let message = "limpet stopped; the next pull resumes where this one ended".to_owned();
                break Err(ClientError::Connection { socket: client.socket().to_owned(), message });
            }
            Err(error) => break Err(error),
        }
    };
    display.end()?;
    Ok(ended?)
}

enum Display {
    Hidden,
    /// In one line that is redrawn.
    Redrawn {
        image: String,
    },
    /// In a few separate lines.
    Lines {
        lines: Lines,
        screen: Screen,
    },
}

impl Display {
    fn new(image: &str, screen: Screen) -> Self {
        let image = printable(image);
        let is_dumb = std::env::var_os("TERM").is_none_or(|term| term == "dumb");
        match screen.quiet {
            true => Self::Hidden,
            false if io::stderr().is_terminal() && !is_dumb => Self::Redrawn { image },
            false => Self::Lines { lines: Lines { image, last: None }, screen },
        }
    }

    fn show(&mut self, progress: PullProgress) -> Result<(), CliError> {
        match self {
            Self::Hidden => Ok(()),
            Self::Redrawn { image } => write(&redrawn(image, progress)),
            Self::Lines { lines, screen } => match lines.next(progress, Instant::now()) {
                Some(line) => screen.remark(&line),
                None => Ok(()),
            },
        }
    }

    /// Clears the redrawn line.
    fn end(&self) -> Result<(), CliError> {
        if matches!(self, Self::Redrawn { .. }) { write(CLEAR) } else { Ok(()) }
    }
}

fn write(text: &str) -> Result<(), CliError> {
    let mut out = io::stderr().lock();
    out.write_all(text.as_bytes())?;
    Ok(out.flush()?)
}

/// The line that replaces the previous one. The terminal cuts off what does not fit, because a wrapped line could not
/// be replaced.
fn redrawn(image: &str, progress: PullProgress) -> String {
    format!("{CLEAR}\x1b[?7l{}\x1b[?7h", line(image, progress))
}

fn line(image: &str, progress: PullProgress) -> String {
    match tenths(progress) {
        Some(_) if !progress.is_downloaded() => {
            format!("pulling {image}: {progress} ({}%)", percent(progress))
        }
        _ => format!("pulling {image}: {progress}"),
    }
}

/// The downloaded part in percent.
fn percent(progress: PullProgress) -> u128 {
    (u128::from(progress.done) * 100).checked_div(u128::from(progress.total)).unwrap_or_default().min(100)
}

/// The same in tenths; `None` while the size is unknown.
fn tenths(progress: PullProgress) -> Option<u128> {
    (progress.total > 0).then(|| percent(progress) / 10)
}

/// The progress lines without a terminal: at steps of ten percent, when a layer is unpacked, and not too often.
struct Lines {
    image: String,
    last: Option<(PullProgress, Instant)>,
}

impl Lines {
    /// The line for the progress at `now`, if one is due.
    fn next(&mut self, progress: PullProgress, now: Instant) -> Option<String> {
        // Nothing is known before the manifest is read.
        let is_worth = match self.last {
            None => progress.layers > 0,
            Some((last, _)) if last.is_downloaded() != progress.is_downloaded() => true,
            Some((last, at)) => {
                let differs = tenths(last) != tenths(progress) || last.unpacked != progress.unpacked;
                differs && now.duration_since(at) >= PROGRESS_INTERVAL
            }
        };
        is_worth.then(|| {
            self.last = Some((progress, now));
            line(&self.image, progress)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    fn progress(done: u64, downloaded: usize, unpacked: usize) -> PullProgress {
        PullProgress { done: done * MIB, total: 100 * MIB, layers: 3, downloaded, unpacked }
    }

    #[test]
    fn one_line_is_drawn_in_the_place_of_the_other() {
        let shown = redrawn("web:1", progress(45, 1, 1));
        assert_eq!(shown, "\r\x1b[K\x1b[?7lpulling web:1: 45 of 100 MiB, 1 of 3 layers (45%)\x1b[?7h");
        assert_eq!(line("web:1", progress(100, 3, 1)), "pulling web:1: 100 MiB downloaded, 1 of 3 layers unpacked");
        assert_eq!(line("web:1", PullProgress::default()), "pulling web:1: reading its manifest");
    }

    #[test]
    fn lines_come_at_steps_of_ten_percent_and_not_too_often() {
        let mut lines = Lines { image: "web:1".to_owned(), last: None };
        let begin = Instant::now();
        let table = [
            (0, PullProgress::default(), None),
            (0, progress(0, 0, 0), Some("pulling web:1: 0 of 100 MiB, 0 of 3 layers (0%)")),
            (1, progress(50, 0, 0), None),
            (3, progress(55, 0, 0), Some("pulling web:1: 55 of 100 MiB, 0 of 3 layers (55%)")),
            (7, progress(59, 1, 0), None),
            (8, progress(60, 1, 0), Some("pulling web:1: 60 of 100 MiB, 1 of 3 layers (60%)")),
            // The end of the download is always shown.
            (9, progress(100, 3, 0), Some("pulling web:1: 100 MiB downloaded, 0 of 3 layers unpacked")),
            (10, progress(100, 3, 1), None),
            (12, progress(100, 3, 2), Some("pulling web:1: 100 MiB downloaded, 2 of 3 layers unpacked")),
        ];
        for (second, progress, wanted) in table {
            let line = lines.next(progress, begin + Duration::from_secs(second));
            assert_eq!(line.as_deref(), wanted, "after {second} s");
        }
    }

    #[test]
    fn an_image_without_bytes_has_no_percentage() {
        let empty = PullProgress { total: 0, done: 0, ..progress(0, 1, 0) };
        assert_eq!(line("web:1", empty), "pulling web:1: 0 of 0 MiB, 1 of 3 layers");
    }
}
