//! Addresses of pods in a network of their own, where one program answers at all of them.

use std::fs;
use std::io::{self, Read as _};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::os::fd::AsFd as _;
use std::path::Path;
use std::process::Command;
use std::thread;
use std::time::Duration;

use limpet_tests::process::{self, Daemon};
use limpet_tests::wait;
use rustix::net::sockopt::set_socket_linger;
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

/// Where every pod answers.
pub(crate) const PORT: u16 = 8080;

/// The network of the pods.
pub(crate) struct Pods {
    _holder: Daemon,
}

/// What links the pods' network to that of the bench. `$1` is the process in it.
const LINK: &str = "\
set -e
ip link add to-pods type veth peer name eth0 netns $1
ip address add 10.2.255.254/16 dev to-pods
ip link set to-pods up
nsenter --target $1 --net ip link set lo up
nsenter --target $1 --net ip link set eth0 up
nsenter --target $1 --net ip -batch \"$2\"
nsenter --target $1 --net ip route add default via 10.2.255.254
for at in /proc/sys/net/netfilter/nf_conntrack_tcp_timeout_close /proc/sys/net/netfilter/nf_conntrack_tcp_timeout_time_wait; do
    [ ! -e $at ] || echo 1 > $at
done";

impl Pods {
    /// Makes the network with so many addresses.
    pub(crate) fn start(dir: &Path, count: usize) -> Self {
        let holder =
            Daemon::start(Command::new("unshare").args(["--net", "sleep", "100000"]), &dir.join("pods.log")).unwrap();
        let ours = fs::read_link("/proc/self/ns/net").unwrap();
        let place = format!("/proc/{}/ns/net", holder.pid());
        wait::until_true(wait::SOON, "a network", || fs::read_link(&place).is_ok_and(|theirs| theirs != ours)).unwrap();
        let pods = Self { _holder: holder };
        let batch = dir.join("addresses");
        let lines = (0..count).map(|number| format!("address add {}/16 dev eth0\n", pods.address(number).ip()));
        fs::write(&batch, lines.collect::<String>()).unwrap();
        let pid = pods._holder.pid().to_string();
        process::checked(Command::new("sh").args(["-c", LINK, "sh", &pid]).arg(&batch)).unwrap();
        let network = fs::File::open(&place).unwrap();
        let bound = move || {
            move_into_link_name_space(network.as_fd(), Some(LinkNameSpaceType::Network)).unwrap();
            TcpListener::bind((Ipv4Addr::UNSPECIFIED, PORT)).unwrap()
        };
        let listener = thread::spawn(bound).join().unwrap();
        // Each connection is closed at once, which the other side waits for: so no queue fills.
        thread::spawn(move || while listener.accept().is_ok() {});
        wait::until_true(wait::SOON, "a pod", || connect(pods.address(count - 1)).is_ok()).unwrap();
        pods
    }

    /// The address of one of them.
    pub(crate) fn address(&self, number: usize) -> SocketAddr {
        let [high, low] = u16::try_from(number + 1).unwrap_or(u16::MAX).to_be_bytes();
        (Ipv4Addr::new(10, 2, high, low), PORT).into()
    }
}

/// Connects, waits until the pod has closed the connection, and resets it, so that neither side remembers it.
pub(crate) fn connect(address: SocketAddr) -> io::Result<()> {
    let mut stream = TcpStream::connect_timeout(&address, Duration::from_secs(5))?;
    stream.set_read_timeout(Some(Duration::from_secs(5)))?;
    set_socket_linger(&stream, Some(Duration::ZERO))?;
    stream
        .read_exact(&mut [0])
        .or_else(|error| if error.kind() == io::ErrorKind::UnexpectedEof { Ok(()) } else { Err(error) })
}
