//! The name server for pods: answers for Services, and passes everything else on to the node's name servers.
//!
//! [`answer`] decides, [`server`] listens, and [`upstream`] asks others. Sockets exist while there are Services; between queries
//! nothing is woken.

mod answer;
pub(crate) mod server;
pub(crate) mod upstream;

/// The largest message by TCP.
const MAX_MESSAGE: usize = 65_535;
/// The largest answer by UDP: what passes every network in one piece.
const MAX_DATAGRAM: usize = 1_232;
/// What a client that says nothing of it accepts by UDP.
const PLAIN_DATAGRAM: usize = 512;
