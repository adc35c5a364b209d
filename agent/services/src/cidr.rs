//! Ranges of IP addresses, from which Services get theirs.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::str::FromStr;

/// The longest range, in bits: as many addresses as an apiserver allocates for Services.
const MAX_HOST_BITS: u8 = 20;

/// A range of addresses of one family.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Cidr {
    base: IpAddr,
    prefix: u8,
}

/// A text is no range of Services.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum CidrError {
    #[error("is no range such as 10.43.0.0/16")]
    Form,
    /// Bits after the prefix are set.
    #[error("has an address within the range; the range is {0}")]
    Base(Cidr),
    /// It is too large or too small.
    #[error("must have a prefix of {least} to {most} bits")]
    Size { least: u8, most: u8 },
}

impl Cidr {
    /// The range of `prefix` bits of `base`.
    fn new(base: IpAddr, prefix: u8) -> Self {
        let base = match base {
            IpAddr::V4(v4) => IpAddr::V4(Ipv4Addr::from_bits(v4.to_bits() & mask(prefix, 32) as u32)),
            IpAddr::V6(v6) => IpAddr::V6(Ipv6Addr::from_bits(v6.to_bits() & mask(prefix, 128))),
        };
        Self { base, prefix }
    }

    pub fn is_ipv4(&self) -> bool {
        self.base.is_ipv4()
    }

    /// The first address, by which the range is written.
    pub fn base(&self) -> IpAddr {
        self.base
    }

    pub fn prefix(&self) -> u8 {
        self.prefix
    }

    /// The mask of its prefix, as the bytes of an address.
    pub fn mask(&self) -> Vec<u8> {
        match self.base {
            IpAddr::V4(_) => (mask(self.prefix, 32) as u32).to_be_bytes().to_vec(),
            IpAddr::V6(_) => mask(self.prefix, 128).to_be_bytes().to_vec(),
        }
    }

    /// Whether the address is one of them.
    pub fn contains(&self, address: IpAddr) -> bool {
        address.is_ipv4() == self.is_ipv4() && Self::new(address, self.prefix).base == self.base
    }

    /// How many addresses it has.
    pub fn size(&self) -> u32 {
        let bits = if self.is_ipv4() { 32 } else { 128 };
        1 << (bits - self.prefix).min(MAX_HOST_BITS)
    }

    /// The address at that place.
    pub fn at(&self, offset: u32) -> IpAddr {
        match self.base {
            IpAddr::V4(v4) => IpAddr::V4(Ipv4Addr::from_bits(v4.to_bits().wrapping_add(offset))),
            IpAddr::V6(v6) => IpAddr::V6(Ipv6Addr::from_bits(v6.to_bits().wrapping_add(u128::from(offset)))),
        }
    }
}

/// `prefix` ones, followed by zeros, in the low `bits` bits.
fn mask(prefix: u8, bits: u8) -> u128 {
    let all = if bits == 128 { u128::MAX } else { (1 << bits) - 1 };
    let host = u32::from(bits.saturating_sub(prefix));
    all & u128::MAX.checked_shl(host).unwrap_or(0)
}

impl fmt::Display for Cidr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.base, self.prefix)
    }
}

impl FromStr for Cidr {
    type Err = CidrError;

    fn from_str(text: &str) -> Result<Self, CidrError> {
        let (base, prefix) = text.split_once('/').ok_or(CidrError::Form)?;
        let base: IpAddr = base.parse().map_err(|_| CidrError::Form)?;
        let prefix: u8 = prefix.parse().map_err(|_| CidrError::Form)?;
        let bits = if base.is_ipv4() { 32 } else { 128 };
        let (least, most) = (bits - MAX_HOST_BITS, bits - 4);
        if !(least..=most).contains(&prefix) {
            return Err(CidrError::Size { least, most });
        }
        let cidr = Self::new(base, prefix);
        if cidr.base == base { Ok(cidr) } else { Err(CidrError::Base(cidr)) }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn a_range_is_read_and_has_its_addresses() {
        let range: Cidr = "10.43.0.0/16".parse().unwrap();
        let ip = |text: &str| text.parse::<IpAddr>().unwrap();
        assert_eq!((range.size(), range.at(258), range.mask()), (65_536, ip("10.43.1.2"), vec![255, 255, 0, 0]));
        assert!(range.contains(ip("10.43.255.255")) && !range.contains(ip("10.44.0.0")) && !range.contains(ip("::1")));
        let six: Cidr = "fd00:43::/112".parse().unwrap();
        assert_eq!((six.size(), six.at(10)), (65_536, ip("fd00:43::a")));
        assert!(six.contains(ip("fd00:43::ffff")) && !six.contains(ip("fd00:43::1:0")));
        assert_eq!(six.to_string(), "fd00:43::/112");
        for (text, error) in [
            ("10.43.0.0", CidrError::Form),
            ("10.43/16", CidrError::Form),
            ("10.43.0.1/16", CidrError::Base(range)),
            ("10.0.0.0/8", CidrError::Size { least: 12, most: 28 }),
            ("fd00::/64", CidrError::Size { least: 108, most: 124 }),
        ] {
            assert_eq!(text.parse::<Cidr>(), Err(error), "{text}");
        }
    }
}
