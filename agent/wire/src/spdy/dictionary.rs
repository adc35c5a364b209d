//! The data that both sides of SPDY/3 assume as sent before the first header block, as its specification lists it
//! (section 2.6.10.1): words, each preceded by its length, and a text.

/// The dictionary's Adler-32 checksum, which identifies it in a zlib stream.
pub(super) const CHECKSUM: u32 = 0xe3c6_a7c2;

#[rustfmt::skip]
const WORDS: [&str; 65] = [
    "options", "head", "post", "put", "delete", "trace", "accept", "accept-charset", "accept-encoding", "accept-language",
    "accept-ranges", "age", "allow", "authorization", "cache-control", "connection", "content-base", "content-encoding",
    "content-language", "content-length", "content-location", "content-md5", "content-range", "content-type", "date", "etag",
    "expect", "expires", "from", "host", "if-match", "if-modified-since", "if-none-match", "if-range", "if-unmodified-since",
    "last-modified", "location", "max-forwards", "pragma", "proxy-authenticate", "proxy-authorization", "range", "referer",
    "retry-after", "server", "te", "trailer", "transfer-encoding", "upgrade", "user-agent", "vary", "via", "warning",
    "www-authenticate", "method", "get", "status", "200 OK", "version", "HTTP/1.1", "url", "public", "set-cookie",
    "keep-alive", "origin",
];

const TEXT: &str = "100101201202205206300302303304305306307402405406407408409410411412413414415416417502504505\
    203 Non-Authoritative Information204 No Content301 Moved Permanently400 Bad Request401 Unauthorized403 Forbidden\
    404 Not Found500 Internal Server Error501 Not Implemented503 Service UnavailableJan Feb Mar Apr May Jun Jul Aug \
    Sept Oct Nov Dec 00:00:00 Mon, Tue, Wed, Thu, Fri, Sat, Sun, GMTchunked,text/html,image/png,image/jpg,image/gif,\
    application/xml,application/xhtml+xml,text/plain,text/javascript,publicprivatemax-age=gzip,deflate,sdch\
    charset=utf-8charset=iso-8859-1,utf-,*,enq=0.";

pub(super) fn dictionary() -> impl Iterator<Item = u8> {
    // No word is longer than 255 bytes.
    let words = WORDS.iter().flat_map(|word| [0, 0, 0, word.len() as u8].into_iter().chain(word.bytes()));
    words.chain(TEXT.bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_has_the_checksum_by_which_every_peer_names_it() {
        let (mut low, mut high) = (1, 0);
        for byte in dictionary() {
            low = (low + u32::from(byte)) % 65_521;
            high = (high + low) % 65_521;
        }
        assert_eq!((high << 16 | low, dictionary().count()), (CHECKSUM, 1_423));
    }
}
