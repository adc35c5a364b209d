//! One direction of a line: it takes Ethernet frames from one device and puts them on another, late, few, or not at
//! all.
//!
//! The kernels that the tests know have no `netem`, so a queue of this process's does what it would: a rate with a buffer
//! before it, a delay behind it, and losses.

use std::os::fd::{AsRawFd as _, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, Receiver, Sender};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use nix::ifaddrs::getifaddrs;
use nix::sys::socket::{
    AddressFamily, MsgFlags, SockFlag, SockProtocol, SockType, bind, recv, send, setsockopt, socket, sockopt,
};
use nix::sys::time::{TimeVal, TimeValLike as _};

/// How long a reader waits for a frame before it checks whether it has to end.
const READ_TIMEOUT_MS: i64 = 100;
/// The longest frame that a device without segmentation offload sends, with room.
const MAX_FRAME: usize = 1 << 16;
/// How many bytes may wait for a limited rate. More is lost, as in the buffer of a modem.
const QUEUE_BYTES: u64 = 48 << 10;

/// What happens to the frames of one direction.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Way {
    /// Whether no frame arrives.
    pub(crate) swallows: bool,
    /// By how much each frame is delayed.
    pub(crate) delay: Duration,
    /// How many of a hundred are lost.
    pub(crate) loss: u32,
    /// How many bytes pass in a second; `None` for no limit.
    pub(crate) rate: Option<u64>,
}

/// One direction, relayed by two threads until it is dropped.
#[derive(Debug)]
pub(crate) struct Relay {
    way: Arc<Mutex<Way>>,
    stop: Arc<AtomicBool>,
    threads: Vec<JoinHandle<()>>,
}

impl Relay {
    /// Relays from one socket to the other.
    pub(crate) fn start(from: Arc<OwnedFd>, to: Arc<OwnedFd>, seed: u64) -> Self {
        let (way, stop) = (Arc::<Mutex<Way>>::default(), Arc::<AtomicBool>::default());
        let (sender, frames) = mpsc::channel();
        let reader = {
            let (way, stop) = (Arc::clone(&way), Arc::clone(&stop));
            std::thread::spawn(move || read(&from, &way, &stop, &sender, fastrand::Rng::with_seed(seed)))
        };
        let writer = std::thread::spawn(move || write(&to, &frames));
        Self { way, stop, threads: vec![reader, writer] }
    }

    /// Sets what happens to frames from now on.
    pub(crate) fn set(&self, way: Way) {
        *self.way.lock().unwrap_or_else(PoisonError::into_inner) = way;
    }
}

impl Drop for Relay {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::SeqCst);
        for thread in self.threads.drain(..) {
            thread.join().ok();
        }
    }
}

/// A socket for all frames of a device in this thread's network namespace.
pub(crate) fn open(device: &str) -> Result<OwnedFd> {
    let (family, protocol) = (AddressFamily::Packet, SockProtocol::EthAll);
    let socket = socket(family, SockType::Raw, SockFlag::SOCK_CLOEXEC, protocol).context("a packet socket")?;
    let mut all = getifaddrs()?.filter(|interface| interface.interface_name == device);
    let address =
        all.find_map(|interface| interface.address?.as_link_addr().copied()).with_context(|| format!("no {device}"))?;
    bind(socket.as_raw_fd(), &address).with_context(|| format!("bind to {device}"))?;
    setsockopt(&socket, sockopt::ReceiveTimeout, &TimeVal::milliseconds(READ_TIMEOUT_MS))?;
    Ok(socket)
}

fn read(
    from: &OwnedFd,
    way: &Mutex<Way>,
    stop: &AtomicBool,
    frames: &Sender<(Instant, Vec<u8>)>,
    mut rng: fastrand::Rng,
) {
    let (mut buffer, mut free) = (vec![0; MAX_FRAME], Instant::now());
    while !stop.load(Ordering::SeqCst) {
        // The device is down, or there is no frame; both pass.
        let Ok(length) = recv(from.as_raw_fd(), &mut buffer, MsgFlags::empty()) else { continue };
        let way = *way.lock().unwrap_or_else(PoisonError::into_inner);
        if way.swallows || rng.u32(0..100) < way.loss {
            continue;
        }
        let now = Instant::now();
        free = free.max(now);
        if let Some(rate) = way.rate {
            let waiting = (free - now).as_millis() as u64 * rate / 1_000;
            if waiting > QUEUE_BYTES {
                continue;
            }
            free += Duration::from_micros(length as u64 * 1_000_000 / rate);
        }
        let mut frame = buffer[..length].to_vec();
        complete_checksum(&mut frame);
        if frames.send((free + way.delay, frame)).is_err() {
            return;
        }
    }
}

fn write(to: &OwnedFd, frames: &Receiver<(Instant, Vec<u8>)>) {
    while let Ok((due, frame)) = frames.recv() {
        std::thread::sleep(due.saturating_duration_since(Instant::now()));
        // A device that is down loses the frame.
        send(to.as_raw_fd(), &frame, MsgFlags::empty()).ok();
    }
}

/// Completes the checksum of TCP over IPv4, which the kernel leaves to the device.
fn complete_checksum(frame: &mut [u8]) {
    const HEADER: usize = 14;
    if frame.get(12..14) != Some(&[8, 0]) || frame.get(HEADER + 9) != Some(&6) {
        return;
    }
    let length = usize::from(u16::from_be_bytes([frame[HEADER + 2], frame[HEADER + 3]]));
    let start = HEADER + usize::from(frame[HEADER] & 15) * 4;
    let end = HEADER + length;
    if end > frame.len() || start + 18 > end {
        return;
    }
    frame[start + 16..start + 18].fill(0);
    let words = |bytes: &[u8]| -> u32 {
        let word = |pair: &[u8]| u32::from(pair[0]) << 8 | u32::from(pair.get(1).copied().unwrap_or(0));
        bytes.chunks(2).map(word).sum()
    };
    let mut sum = words(&frame[HEADER + 12..HEADER + 20]) + 6 + (end - start) as u32 + words(&frame[start..end]);
    while sum > 0xffff {
        sum = (sum >> 16) + (sum & 0xffff);
    }
    let checksum = !(sum as u16);
    frame[start + 16..start + 18].copy_from_slice(&checksum.to_be_bytes());
}
