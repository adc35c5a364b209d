//! TLS 1.2 with AES in CBC mode and HMAC-SHA1 (RFC 5246, section 6.2.3.2): the cipher suites that Go's client offers
//! and rustls lacks, and the only ones of servers on old devices.
//!
//! For probes only: a timing attack reveals nothing that a connection with an unverified certificate would protect.

use std::sync::LazyLock;

use aes::cipher::{Block, BlockCipherDecrypt as _, BlockCipherEncrypt as _, KeyInit as _};
use aes::{Aes128, Aes256};
use ring::hmac;
use ring::rand::{SecureRandom as _, SystemRandom};
use rustls::crypto::cipher::{
    AeadKey, InboundOpaqueMessage, InboundPlainMessage, KeyBlockShape, MessageDecrypter, MessageEncrypter,
    OutboundOpaqueMessage, OutboundPlainMessage, PrefixedPayload, Tls12AeadAlgorithm, UnsupportedOperationError,
    make_tls12_aad,
};
use rustls::crypto::ring::cipher_suite;
use rustls::{CipherSuite, CipherSuiteCommon, ConnectionTrafficSecrets, Error, SupportedCipherSuite, Tls12CipherSuite};

const BLOCK: usize = 16;
/// The length of HMAC-SHA1.
const MAC: usize = 20;
/// The most bytes of a record's content.
const MAX_CONTENT: usize = 1 << 14;

/// The suites in order of preference, as in Go.
pub(crate) fn suites() -> Vec<SupportedCipherSuite> {
    static SUITES: LazyLock<Vec<Tls12CipherSuite>> = LazyLock::new(|| {
        use cipher_suite::{TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256, TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256};
        let (ecdsa, rsa) = (TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256, TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256);
        let named = [
            (CipherSuite::TLS_ECDHE_ECDSA_WITH_AES_128_CBC_SHA, ecdsa, &AES_128),
            (CipherSuite::TLS_ECDHE_RSA_WITH_AES_128_CBC_SHA, rsa, &AES_128),
            (CipherSuite::TLS_ECDHE_ECDSA_WITH_AES_256_CBC_SHA, ecdsa, &AES_256),
            (CipherSuite::TLS_ECDHE_RSA_WITH_AES_256_CBC_SHA, rsa, &AES_256),
        ];
        named.into_iter().filter_map(|(suite, like, cipher)| with_cipher(suite, like, cipher)).collect()
    });
    SUITES.iter().map(SupportedCipherSuite::Tls12).collect()
}

/// A suite with the key exchange, signatures and hash of another one.
fn with_cipher(
    suite: CipherSuite,
    like: SupportedCipherSuite,
    cipher: &'static AesCbcSha1,
) -> Option<Tls12CipherSuite> {
    let SupportedCipherSuite::Tls12(like) = like else { return None };
    Some(Tls12CipherSuite {
        common: CipherSuiteCommon {
            suite,
            hash_provider: like.common.hash_provider,
            confidentiality_limit: like.common.confidentiality_limit,
        },
        kx: like.kx,
        sign: like.sign,
        aead_alg: cipher,
        prf_provider: like.prf_provider,
    })
}

static AES_128: AesCbcSha1 = AesCbcSha1 { key_length: 16 };
static AES_256: AesCbcSha1 = AesCbcSha1 { key_length: 32 };

/// The cipher of a suite. rustls splits the key block as for a suite without MAC: what it calls keys are the MAC keys
/// here, and what it calls IVs are the AES keys. They come in this order in RFC 5246, section 6.3.
struct AesCbcSha1 {
    key_length: usize,
}

impl Tls12AeadAlgorithm for AesCbcSha1 {
    fn encrypter(&self, mac: AeadKey, key: &[u8], _: &[u8]) -> Box<dyn MessageEncrypter> {
        Box::new(Keys::new(&mac, key))
    }

    fn decrypter(&self, mac: AeadKey, key: &[u8]) -> Box<dyn MessageDecrypter> {
        Box::new(Keys::new(&mac, key))
    }

    fn key_block_shape(&self) -> KeyBlockShape {
        KeyBlockShape { enc_key_len: MAC, fixed_iv_len: self.key_length, explicit_nonce_len: 0 }
    }

    fn extract_keys(
        &self,
        _: AeadKey,
        _: &[u8],
        _: &[u8],
    ) -> Result<ConnectionTrafficSecrets, UnsupportedOperationError> {
        Err(UnsupportedOperationError)
    }
}

enum Aes {
    Short(Aes128),
    Long(Aes256),
}

impl Aes {
    fn encrypt(&self, block: [u8; BLOCK]) -> [u8; BLOCK] {
        let mut block = Block::<Aes128>::from(block);
        match self {
            Self::Short(aes) => aes.encrypt_block(&mut block),
            Self::Long(aes) => aes.encrypt_block(&mut block),
        }
        block.into()
    }

    fn decrypt(&self, block: [u8; BLOCK]) -> [u8; BLOCK] {
        let mut block = Block::<Aes128>::from(block);
        match self {
            Self::Short(aes) => aes.decrypt_block(&mut block),
            Self::Long(aes) => aes.decrypt_block(&mut block),
        }
        block.into()
    }
}

/// The keys of one direction.
struct Keys {
    mac: hmac::Key,
    aes: Aes,
}

impl Keys {
    fn new(mac: &AeadKey, key: &[u8]) -> Self {
        let aes = match <[u8; 16]>::try_from(key) {
            Ok(key) => Aes::Short(Aes128::new(&key.into())),
            #[allow(
                clippy::expect_used,
                reason = "AES_128 and AES_256 are all there are: their keys have 16 and 32 bytes"
            )]
            Err(_) => Aes::Long(Aes256::new_from_slice(key).expect("a key of 32 bytes")),
        };
        Self { mac: hmac::Key::new(hmac::HMAC_SHA1_FOR_LEGACY_USE_ONLY, mac.as_ref()), aes }
    }

    fn mac(&self, header: &[u8], content: &[u8]) -> hmac::Context {
        let mut mac = hmac::Context::with_key(&self.mac);
        mac.update(header);
        mac.update(content);
        mac
    }
}

impl MessageEncrypter for Keys {
    fn encrypt(&mut self, message: OutboundPlainMessage<'_>, sequence: u64) -> Result<OutboundOpaqueMessage, Error> {
        let (content, length) = (message.payload.to_vec(), message.payload.len());
        let header = make_tls12_aad(sequence, message.typ, message.version, length);
        let mac = self.mac(&header, &content).sign();
        let mut plain = [&content[..], mac.as_ref()].concat();
        // Pads to a whole block; each padding byte is their number minus one.
        let padding = BLOCK - plain.len() % BLOCK;
        plain.resize(plain.len() + padding, (padding - 1) as u8);
        let mut previous = [0; BLOCK];
        SystemRandom::new().fill(&mut previous).map_err(|_| Error::FailedToGetRandomBytes)?;
        let mut payload = PrefixedPayload::with_capacity(self.encrypted_payload_len(length));
        payload.extend_from_slice(&previous);
        for block in plain.as_chunks::<BLOCK>().0 {
            previous = self.aes.encrypt(xor(*block, previous));
            payload.extend_from_slice(&previous);
        }
        Ok(OutboundOpaqueMessage::new(message.typ, message.version, payload))
    }

    fn encrypted_payload_len(&self, length: usize) -> usize {
        BLOCK + (length + MAC) / BLOCK * BLOCK + BLOCK
    }
}

impl MessageDecrypter for Keys {
    fn decrypt<'a>(
        &mut self,
        mut message: InboundOpaqueMessage<'a>,
        sequence: u64,
    ) -> Result<InboundPlainMessage<'a>, Error> {
        let payload = &mut message.payload;
        let (blocks, rest) = payload.as_chunks_mut::<BLOCK>();
        let [vector, blocks @ ..] = blocks else { return Err(Error::DecryptError) };
        let mut previous = *vector;
        for block in &mut *blocks {
            let plain = xor(self.aes.decrypt(*block), previous);
            previous = std::mem::replace(block, plain);
        }
        let plain = blocks.as_flattened();
        let padding = usize::from(*plain.last().filter(|_| rest.is_empty()).ok_or(Error::DecryptError)?);
        let length = plain.len().checked_sub(padding + 1 + MAC).ok_or(Error::DecryptError)?;
        if length > MAX_CONTENT {
            return Err(Error::PeerSentOversizedRecord);
        }
        let (content, end) = plain.split_at(length);
        let (mac, end) = end.split_at(MAC);
        let header = make_tls12_aad(sequence, message.typ, message.version, length);
        let is_whole = self.mac(&header, content).sign().as_ref() == mac;
        if !is_whole || end.iter().any(|byte| usize::from(*byte) != padding) {
            return Err(Error::DecryptError);
        }
        payload.copy_within(BLOCK..BLOCK + length, 0);
        payload.truncate(length);
        Ok(message.into_plain_message())
    }
}

fn xor(block: [u8; BLOCK], with: [u8; BLOCK]) -> [u8; BLOCK] {
    let mut result = block;
    result.iter_mut().zip(with).for_each(|(byte, with)| *byte ^= with);
    result
}
