//! `limpet ui`: a full screen of pods, events, logs and pressure, over the local socket. It changes nothing.
//!
//! The core is pure: updates and keys change the state ([`state`]), a screen is drawn from the state ([`frame`]), and
//! the fewest bytes are computed that turn the last screen into the new one ([`paint`]). The shell is in this file:
//! the terminal, signals, and the tasks that follow the agent ([`feeds`]). It suits serial lines: nothing is sent
//! while nothing happens, and a screen is drawn only after the previous one has been sent.

mod feed;
mod feeds;
mod frame;
mod help;
mod keys;
mod log;
mod page;
mod paint;
mod state;
mod terminal;
mod text;
mod usage;

use std::io;
use std::time::Duration;

use jiff::Timestamp;
use rustix::process::{Signal as SignalNumber, getpid, kill_process};
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep, sleep_until};

use super::error::CliError;
use super::exec::stream::read_stdin;
use super::screen::Screen;
use feed::Feed;
use feeds::{Feeds, PODS};
use keys::Keys;
use limpet_wire::pods::PodChange;
use limpet_wire::socket_client::SocketClient;
use paint::Frame;
use state::{Order, Ui};
use terminal::{Abilities, FullScreen, Writer, columns_and_lines};

/// Arguments of `limpet ui`.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Keys: ? lists them. It reads well over a serial line of 9,600 baud: only what changed is sent, \
and nothing while nothing happens. TERM=vt100 and vt220 get neither colours nor characters beyond ASCII."
)]
pub struct UiArgs {}

/// The shortest time between two screens without a key press.
const MIN_REDRAW_INTERVAL: Duration = Duration::from_millis(500);
/// How long Escape may be the beginning of another key: at 9,600 baud a byte takes a millisecond.
const ESCAPE_TIMEOUT: Duration = Duration::from_millis(100);
/// How long to wait for the agent's first response before a screen is shown without it.
const FIRST_RESPONSE_TIMEOUT: Duration = Duration::from_millis(500);
/// How long a shell may take to stop this process.
const SUSPEND_TIMEOUT: Duration = Duration::from_millis(50);

pub(super) async fn run(client: &SocketClient, _args: UiArgs, screen: Screen) -> Result<u8, CliError> {
    terminal::require()?;
    let abilities = Abilities::new(variable, screen.color)?;
    // An unreachable agent is reported before the terminal is changed.
    let (feeds, news) = Feeds::start(client, client.lines(PODS).await?);
    let screen = Screen { color: abilities.color, ..screen };
    let signals = Signals::new()?;
    let keys = read_stdin().map_err(|source| system("read standard input", source))?;
    // Restores the terminal when it is dropped, on every path.
    let full = FullScreen::begin(abilities)?;
    let shell = Shell {
        ui: Ui::new(screen, abilities.utf8, columns_and_lines(variable), Timestamp::now()),
        feeds,
        writer: Writer::start()?,
        shown: None,
        due: Some(Instant::now() + FIRST_RESPONSE_TIMEOUT),
        free: Instant::now(),
        keys: Keys::default(),
    };
    shell.run(news, keys, signals, &full).await
}

fn variable(name: &str) -> Option<String> {
    std::env::var(name).ok()
}

fn system(what: &str, source: io::Error) -> CliError {
    CliError::System { what: what.to_owned(), source }
}

struct Signals {
    resized: Signal,
    resumed: Signal,
    ending: [Signal; 3],
}

impl Signals {
    fn new() -> Result<Self, CliError> {
        let on = |kind| signal(kind).map_err(|source| system("watch for signals", source));
        Ok(Self {
            resized: on(SignalKind::window_change())?,
            resumed: on(SignalKind::from_raw(SignalNumber::CONT.as_raw()))?,
            ending: [on(SignalKind::interrupt())?, on(SignalKind::terminate())?, on(SignalKind::hangup())?],
        })
    }
}

/// Waits for a signal that ends the command.
async fn ended([interrupt, terminate, hangup]: &mut [Signal; 3]) {
    tokio::select! {
        _ = interrupt.recv() => {}
        _ = terminate.recv() => {}
        _ = hangup.recv() => {}
    }
}

/// The link between the terminal and the agent.
struct Shell {
    ui: Ui,
    feeds: Feeds,
    writer: Writer,
    /// The screen on the terminal.
    shown: Option<Frame>,
    /// When the next screen is to be drawn, if one is.
    due: Option<Instant>,
    /// When the next screen may be drawn without a key press.
    free: Instant,
    keys: Keys,
}

impl Shell {
    async fn run(
        mut self,
        mut news: mpsc::Receiver<Feed>,
        mut input: mpsc::Receiver<Vec<u8>>,
        mut signals: Signals,
        full: &FullScreen,
    ) -> Result<u8, CliError> {
        loop {
            self.feeds.want(self.ui.wanted());
            let draw = self.due.filter(|_| !self.writer.is_busy());
            let escape = self.keys.is_pending();
            let order = tokio::select! {
                bytes = input.recv() => match bytes {
                    Some(bytes) => self.typed(&bytes),
                    // The terminal is gone.
                    None => Some(Order::Quit),
                },
                () = sleep(ESCAPE_TIMEOUT), if escape => {
                    self.due = Some(Instant::now());
                    self.keys.end().and_then(|key| self.ui.key(key))
                }
                feed = news.recv() => {
                    self.on_update(feed, &mut news);
                    None
                }
                sent = self.writer.done() => sent.is_err().then_some(Order::Quit),
                () = sleep_until(draw.unwrap_or_else(Instant::now)), if draw.is_some() => {
                    self.draw();
                    None
                }
                _ = signals.resized.recv() => {
                    self.ui.size = columns_and_lines(variable);
                    Some(Order::Redraw)
                }
                _ = signals.resumed.recv() => {
                    full.fill()?;
                    Some(Order::Redraw)
                }
                () = ended(&mut signals.ending) => Some(Order::Quit),
            };
            match order {
                Some(Order::Quit) => {
                    self.finish().await;
                    return Ok(0);
                }
                Some(Order::Suspend) => self.suspend(&mut signals, full).await?,
                Some(Order::Redraw) => self.again(),
                None => {}
            }
        }
    }

    fn typed(&mut self, bytes: &[u8]) -> Option<Order> {
        self.due = Some(Instant::now());
        let keys = self.keys.feed(bytes);
        // Every key is processed and the last action counts, so Ctrl-C after other keys quits.
        keys.into_iter().filter_map(|key| self.ui.key(key)).last()
    }

    /// Applies the updates that have arrived, and schedules a redraw.
    fn on_update(&mut self, feed: Option<Feed>, news: &mut mpsc::Receiver<Feed>) {
        let now = Timestamp::now();
        let mut next = feed;
        while let Some(feed) = next {
            let first = matches!(feed, Feed::Pod(PodChange::Synced));
            self.ui.news(feed, now);
            let at = if first { Instant::now() } else { self.free };
            // The agent's list arrives pod by pod, and is shown once it is complete.
            if self.ui.link != state::Link::Connecting {
                self.due = Some(self.due.map_or(at, |due| due.min(at)));
            }
            next = news.try_recv().ok();
        }
    }

    fn draw(&mut self) {
        let frame = frame::frame(&mut self.ui);
        self.writer.send(paint::bytes(self.shown.as_ref(), &frame));
        self.shown = Some(frame);
        (self.due, self.free) = (None, Instant::now() + MIN_REDRAW_INTERVAL);
    }

    /// Redraws the complete screen.
    fn again(&mut self) {
        self.shown = None;
        self.due = Some(Instant::now());
    }

    /// Waits for the screen that is being written, which would otherwise appear after the terminal was restored.
    async fn finish(&mut self) {
        if self.writer.is_busy() {
            // A terminal that is stopped or gone accepts no output.
            let _ = tokio::time::timeout(MIN_REDRAW_INTERVAL, self.writer.done()).await;
        }
    }

    /// Stops on Ctrl-Z as any command does, and continues at SIGCONT, or immediately where no shell could send it.
    async fn suspend(&mut self, signals: &mut Signals, full: &FullScreen) -> Result<(), CliError> {
        self.finish().await;
        terminal::give_back();
        kill_process(getpid(), SignalNumber::TSTP).map_err(|error| system("suspend", error.into()))?;
        tokio::select! {
            _ = signals.resumed.recv() => {}
            () = sleep(SUSPEND_TIMEOUT) => {}
        }
        full.fill()?;
        self.ui.size = columns_and_lines(variable);
        self.again();
        Ok(())
    }
}

#[cfg(test)]
mod tests;
