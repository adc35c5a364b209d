//! When the node requests certificates. Pure: time and a random number are arguments.

use jiff::{SignedDuration, Timestamp};

/// When a certificate is valid.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Validity {
    pub not_before: Timestamp,
    pub not_after: Timestamp,
}

/// How the node identifies itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Identity {
    /// There is no kubeconfig yet.
    None,
    /// By credentials that this agent does not renew: a token, or a program that prints one.
    Other,
    /// By a certificate in a file, which is this agent's, or one that the kubeconfig names.
    Certificate(Validity),
    /// By the certificate in the kubeconfig. As in client-go, it is replaced at once if certificates are renewed at
    /// all.
    Embedded(Validity),
}

/// What happens next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CertificateStep {
    /// Request a certificate with the bootstrap kubeconfig's credentials.
    Bootstrap,
    /// Request a certificate with the current one.
    Renew,
    /// Do nothing until then, or until the clock is set. `None` if only the clock matters.
    Wait(Option<Timestamp>),
}

impl Validity {
    /// When the next certificate is requested: after 70 to 90 % of the validity, as in kubelet. `chance` spreads
    /// nodes. A certificate that was issued at `issued` is used for at least half of the time that was left then,
    /// because one that is backdated, or ends together with its authority, may already be near its end, and so may
    /// the next one.
    pub fn renewal(&self, chance: u64, issued: Option<Timestamp>) -> Timestamp {
        let total = self.not_after.duration_since(self.not_before).as_secs().max(0);
        let permille = 700 + i64::try_from(chance % 200).unwrap_or_default();
        let old = self.not_before + SignedDuration::from_secs(total / 1000 * permille + total % 1000 * permille / 1000);
        match issued.map(|issued| (issued, self.not_after.duration_since(issued))) {
            Some((issued, left)) if issued >= self.not_before && left.is_positive() => old.max(issued + left / 2),
            _ => old,
        }
    }
}

/// What comes next for the certificate by which the node identifies itself. `bootstrap`: there is a bootstrap
/// kubeconfig; `rotate`: `rotateCertificates`; `issued`: when this agent got the certificate, if it did.
pub fn next(
    identity: Identity,
    bootstrap: bool,
    rotate: bool,
    chance: u64,
    issued: Option<Timestamp>,
    now: Timestamp,
) -> CertificateStep {
    let (validity, is_own) = match identity {
        Identity::None if bootstrap => return CertificateStep::Bootstrap,
        Identity::None | Identity::Other => return CertificateStep::Wait(None),
        Identity::Certificate(validity) => (validity, true),
        Identity::Embedded(validity) => (validity, false),
    };
    // The clock is wrong, not the certificate.
    if now < validity.not_before {
        return CertificateStep::Wait(Some(validity.not_before));
    }
    if now > validity.not_after {
        return if bootstrap { CertificateStep::Bootstrap } else { CertificateStep::Wait(None) };
    }
    if !rotate {
        return CertificateStep::Wait(bootstrap.then_some(validity.not_after));
    }
    match validity.renewal(chance, issued) {
        at if is_own && at > now => CertificateStep::Wait(Some(at)),
        _ => CertificateStep::Renew,
    }
}

/// What comes next for the certificate that the node shows to its clients. `held` is the current one, if it contains
/// the node's current names; `issued`: when this agent got it, if it did.
pub fn next_serving(held: Option<Validity>, chance: u64, issued: Option<Timestamp>, now: Timestamp) -> CertificateStep {
    match held {
        None => CertificateStep::Renew,
        Some(validity) if now < validity.not_before => CertificateStep::Wait(Some(validity.not_before)),
        Some(validity) if now > validity.not_after => CertificateStep::Renew,
        Some(validity) => match validity.renewal(chance, issued) {
            at if at <= now => CertificateStep::Renew,
            at => CertificateStep::Wait(Some(at)),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(second: i64) -> Timestamp {
        Timestamp::UNIX_EPOCH + SignedDuration::from_secs(second)
    }

    #[test]
    fn certificates_are_asked_for_in_time_and_not_before() {
        let validity = Validity { not_before: at(1000), not_after: at(2000) };
        let (year, embedded) = (Identity::Certificate(validity), Identity::Embedded(validity));
        let table = [
            // There is none yet, or one that is not renewed.
            (Identity::None, true, true, 1500, CertificateStep::Bootstrap),
            (Identity::None, false, true, 1500, CertificateStep::Wait(None)),
            (Identity::Other, true, true, 1500, CertificateStep::Wait(None)),
            // A clock of 1970.
            (year, true, true, 0, CertificateStep::Wait(Some(at(1000)))),
            // Between 70 and 90 %: here 75.
            (year, true, true, 1500, CertificateStep::Wait(Some(at(1750)))),
            (year, false, true, 1750, CertificateStep::Renew),
            (year, false, true, 2000, CertificateStep::Renew),
            // It has expired, so it cannot renew itself.
            (year, true, true, 2001, CertificateStep::Bootstrap),
            (year, true, false, 2001, CertificateStep::Bootstrap),
            (year, false, true, 2001, CertificateStep::Wait(None)),
            // The kubeconfig's own certificate was not requested by this agent.
            (embedded, true, true, 500, CertificateStep::Wait(Some(at(1000)))),
            (embedded, false, true, 1000, CertificateStep::Renew),
            (embedded, true, true, 1500, CertificateStep::Renew),
            (embedded, true, true, 2001, CertificateStep::Bootstrap),
            (embedded, false, false, 1500, CertificateStep::Wait(None)),
            // It is not rotated.
            (year, true, false, 1750, CertificateStep::Wait(Some(at(2000)))),
            (year, false, false, 1750, CertificateStep::Wait(None)),
        ];
        for (identity, bootstrap, rotate, now, expected) in table {
            let step = next(identity, bootstrap, rotate, 50, None, at(now));
            assert_eq!(step, expected, "{identity:?} {bootstrap} {rotate} {now}");
        }
    }

    #[test]
    fn the_certificate_for_clients_is_asked_for_whenever_there_is_none() {
        let held = Some(Validity { not_before: at(1000), not_after: at(2000) });
        let table = [
            (None, 5, CertificateStep::Renew),
            (held, 5, CertificateStep::Wait(Some(at(1000)))),
            (held, 1500, CertificateStep::Wait(Some(at(1750)))),
            (held, 1750, CertificateStep::Renew),
            (held, 3000, CertificateStep::Renew),
        ];
        for (held, now, expected) in table {
            assert_eq!(next_serving(held, 50, None, at(now)), expected, "{held:?} {now}");
        }
    }

    #[test]
    fn renewals_are_spread_over_a_fifth_of_the_time() {
        let validity = Validity { not_before: at(0), not_after: at(1_000_000) };
        assert_eq!((validity.renewal(0, None), validity.renewal(199, None)), (at(700_000), at(899_000)));
        // A server issues certificates that end before they begin.
        let reversed = Validity { not_before: at(10), not_after: at(0) };
        assert_eq!(reversed.renewal(7, None), at(10));
        assert_eq!(reversed.renewal(7, Some(at(10))), at(10));
    }

    #[test]
    fn a_certificate_that_is_old_as_it_comes_is_not_renewed_at_once() {
        // Backdated by 5 minutes, and valid for 40 s from now on.
        let backdated = Validity { not_before: at(0), not_after: at(340) };
        let table = [
            (Some(300), 320),
            // It existed before the agent started.
            (None, 255),
            // It was issued when the clock was wrong.
            (Some(-10_000), 255),
            (Some(340), 255),
            (Some(10_000), 255),
            // It was issued in time, so the first rule applies.
            (Some(0), 255),
        ];
        for (issued, expected) in table {
            assert_eq!(backdated.renewal(50, issued.map(at)), at(expected), "{issued:?}");
        }
        let identity = Identity::Certificate(backdated);
        assert_eq!(next(identity, true, true, 50, Some(at(300)), at(301)), CertificateStep::Wait(Some(at(320))));
        assert_eq!(next_serving(Some(backdated), 50, Some(at(300)), at(320)), CertificateStep::Renew);
    }
}
