// Authenticated encryption of one connection: AES-GCM, one key for each direction, a packet number that is never used
// twice, a window that lets every packet through once.
//
//   header as MRC has it, version 1 | payload and padding, encrypted or not | packet number (8) | tag (16)
//
// The tag covers everything before it but BTH byte 4, which switches may change, and takes the place of the invariant CRC.
// The nonce is the packet number, xored with a value drawn from the same secret as the key. Keys follow from the packet
// number: every 2^22 packets the secret is replaced by one drawn from it, so both ends agree without a word. See
// docs/design/security.md.
#pragma once

#include <cassert>
#include <cstdint>
#include <cstring>
#include <memory>
#include <new>
#include <stdexcept>

#include "farstep/byte_order.hpp"
#include "farstep/libcrypto.hpp"
#include "farstep/packet.hpp"

namespace farstep {

enum class ProtectionMode : uint8_t { Off, Authenticate, Encrypt };

inline constexpr size_t kSecretBytes = 32, kTagBytes = 16, kPacketNumberBytes = 8, kNonceBytes = 12;
inline constexpr size_t kProtectionBytes = kPacketNumberBytes + kTagBytes;  // behind payload and padding, for the iCRC
inline constexpr uint8_t kProtectedVersion = 1;  // of the transport, in the low half of BTH byte 1; plain packets have 0

struct ProtectionConfig {
    ProtectionMode mode = ProtectionMode::Off;
    uint32_t key_bytes = 16;  // 16 or 32
    uint8_t tx_secret[kSecretBytes] = {}, rx_secret[kSecretBytes] = {};
    // Packets under one key are 2^this. 2^22 of the longest are 2^32 blocks of AES, for which the bound on what an observer
    // learns (SP 800-38D, RFC 9001 B.1) is still below 2^-60.
    uint32_t epoch_bits = 22;
};

/// HKDF-Expand (RFC 5869) of at most one block: HMAC-SHA256(secret, label | 1).
inline void expand_secret(const LibCrypto& l, const uint8_t* secret, const char* label, uint8_t* out, size_t bytes) noexcept {
    uint8_t info[64], block[kSecretBytes];
    const size_t n = std::strlen(label);
    assert(n < sizeof info && bytes <= sizeof block);
    std::memcpy(info, label, n);
    info[n] = 1;
    unsigned length = 0;
    const bool is_done = l.hmac(l.sha256(), secret, kSecretBytes, info, n + 1, block, &length) && length == sizeof block;
    assert(is_done);
    (void)is_done;
    std::memcpy(out, block, bytes);
    l.cleanse(block, sizeof block);
}

/// Key and nonce base of one direction for one stretch of packet numbers.
class TrafficKey {
public:
    TrafficKey(const LibCrypto& l, uint32_t key_bytes, bool encrypts)
        : l_(l), context_(l.context_new()), key_bytes_(key_bytes), encrypts_(encrypts) {
        const LibCrypto::Cipher* cipher = key_bytes == 32 ? l.aes_256_gcm() : l.aes_128_gcm();
        const bool is_set = context_ && (encrypts ? l.encrypt_init : l.decrypt_init)(context_, cipher, nullptr, nullptr, nullptr) == 1;
        if (!is_set) {
            l.context_free(context_);
            throw std::runtime_error("libcrypto has no AES-GCM");
        }
    }
    ~TrafficKey() {
        l_.context_free(context_);
        l_.cleanse(iv_, sizeof iv_);
    }
    TrafficKey(const TrafficKey&) = delete;

    bool set(uint64_t epoch, const uint8_t* secret) noexcept {
        uint8_t key[32];
        epoch_ = epoch;
        expand_secret(l_, secret, "farstep packet key", key, key_bytes_);
        expand_secret(l_, secret, "farstep packet iv", iv_, sizeof iv_);
        is_set_ = (encrypts_ ? l_.encrypt_init : l_.decrypt_init)(context_, nullptr, nullptr, key, nullptr) == 1;
        l_.cleanse(key, sizeof key);
        return is_set_;
    }
    bool is_for(uint64_t epoch) const noexcept { return is_set_ && epoch == epoch_; }

    /// Authenticates header and body, encrypts the body to `out` where `hides`, else copies it, and appends the tag.
    bool seal(uint64_t number, const uint8_t* header, size_t header_bytes, const uint8_t* const* parts, const size_t* sizes,
              size_t num_parts, bool hides, uint8_t* out, uint8_t* tag) noexcept {
        assert(encrypts_);
        int n = 0;
        if (!start(number, header, header_bytes)) return false;
        for (size_t i = 0; i < num_parts; ++i) {
            if (sizes[i] == 0) continue;
            if (l_.encrypt_update(context_, hides ? out : nullptr, &n, parts[i], static_cast<int>(sizes[i])) != 1) return false;
            if (!hides) std::memcpy(out, parts[i], sizes[i]);
            out += sizes[i];
        }
        return l_.encrypt_final(context_, tag, &n) == 1 && l_.control(context_, LibCrypto::kGetTag, kTagBytes, tag) == 1;
    }
    /// The reverse, in place. False: not what the peer sent, and what the body holds now means nothing.
    bool open(uint64_t number, const uint8_t* header, size_t header_bytes, uint8_t* body, size_t body_bytes, bool hides,
              const uint8_t* tag) noexcept {
        assert(!encrypts_);
        int n = 0;
        uint8_t expected[kTagBytes];
        std::memcpy(expected, tag, sizeof expected);
        if (!start(number, header, header_bytes)) return false;
        if (body_bytes && l_.decrypt_update(context_, hides ? body : nullptr, &n, body, static_cast<int>(body_bytes)) != 1) return false;
        if (l_.control(context_, LibCrypto::kSetTag, kTagBytes, expected) != 1) return false;
        uint8_t rest[kTagBytes];
        return l_.decrypt_final(context_, rest, &n) == 1;
    }

private:
    bool start(uint64_t number, const uint8_t* header, size_t header_bytes) noexcept {
        uint8_t nonce[kNonceBytes], covered[wire::kMaxHeaderBytes];
        std::memcpy(nonce, iv_, sizeof nonce);
        wire::store_be64(nonce + 4, wire::load_be64(nonce + 4) ^ number);
        assert(header_bytes >= wire::kBthBytes && header_bytes <= sizeof covered);
        std::memcpy(covered, header, header_bytes);
        covered[4] = 0xFF;
        int n = 0;
        if ((encrypts_ ? l_.encrypt_init : l_.decrypt_init)(context_, nullptr, nullptr, nullptr, nonce) != 1) return false;
        return (encrypts_ ? l_.encrypt_update : l_.decrypt_update)(context_, nullptr, &n, covered, static_cast<int>(header_bytes)) == 1;
    }

    const LibCrypto& l_;
    LibCrypto::Context* context_;
    uint32_t key_bytes_;
    bool encrypts_, is_set_ = false;
    uint64_t epoch_ = 0;
    uint8_t iv_[kNonceBytes] = {};
};

/// The newest secret of one direction. Going on forgets the one before: keys that were used cannot be found again.
class SecretChain {
public:
    SecretChain(const LibCrypto& l, const uint8_t* first) : l_(l) { std::memcpy(secret_, first, sizeof secret_); }
    ~SecretChain() { l_.cleanse(secret_, sizeof secret_); }
    SecretChain(const SecretChain&) = delete;

    /// Sets `key` for the present epoch and goes on to the next one.
    bool take(TrafficKey& key) noexcept {
        const bool is_set = key.set(epoch_, secret_);
        uint8_t next[kSecretBytes];
        expand_secret(l_, secret_, "farstep key update", next, sizeof next);
        std::memcpy(secret_, next, sizeof secret_);
        l_.cleanse(next, sizeof next);
        ++epoch_;
        return is_set;
    }

private:
    const LibCrypto& l_;
    uint8_t secret_[kSecretBytes];
    uint64_t epoch_ = 0;
};

/// Packet numbers that came. Paths differ in length, so it must span all that may be on the way.
class ReplayWindow {
public:
    static constexpr uint64_t kPackets = 1u << 16;  // twice the widest receive window of data, for the control beside it

    bool admits(uint64_t number) const noexcept {
        if (number >= end_) return true;
        return end_ - number <= kPackets && !(bits_[word(number)] >> (number & 63) & 1);
    }
    void mark(uint64_t number) noexcept {
        if (number >= end_) {
            // Whole words ahead are emptied as the window moves into them.
            const uint64_t first = (end_ + 63) / 64, last = number / 64;
            if (last >= first && last - first >= kWords) std::memset(bits_, 0, sizeof bits_);
            else
                for (uint64_t w = first; w <= last; ++w) bits_[w % kWords] = 0;
            end_ = number + 1;
        }
        bits_[word(number)] |= 1ull << (number & 63);
    }

private:
    // One word more than the window, so that emptying the word just begun forgets nothing that still counts.
    static constexpr uint64_t kWords = kPackets / 64 + 1;
    static constexpr uint64_t word(uint64_t number) noexcept { return number / 64 % kWords; }

    uint64_t end_ = 0;  // one above the highest number seen
    uint64_t bits_[kWords] = {};
};

enum class Opened : uint8_t { Ok, Forged, Replayed };

/// Both directions of one connection. Everything is allocated at construction.
class PacketProtection {
public:
    /// Throws std::runtime_error where libcrypto is missing.
    explicit PacketProtection(const ProtectionConfig& c)
        : l_(library()), mode_(c.mode), epoch_bits_(c.epoch_bits), tx_chain_(l_, c.tx_secret), rx_chain_(l_, c.rx_secret),
          tx_(l_, c.key_bytes, true), rx0_(l_, c.key_bytes, false), rx1_(l_, c.key_bytes, false), rx2_(l_, c.key_bytes, false) {
        assert(c.mode != ProtectionMode::Off && (c.key_bytes == 16 || c.key_bytes == 32) && c.epoch_bits >= 4 && c.epoch_bits < 64);
        if (!tx_chain_.take(tx_) || !rx_chain_.take(*rx_now_) || !rx_chain_.take(*rx_next_))
            throw std::runtime_error("libcrypto takes no AES key");
    }
    PacketProtection(const PacketProtection&) = delete;

    /// Writes body and trailer of the next packet to `out`, which holds `body_bytes` + kProtectionBytes, and marks the
    /// header as protected. False: nothing may be sent.
    bool seal(uint8_t* header, size_t header_bytes, const uint8_t* const* parts, const size_t* sizes, size_t num_parts,
              size_t body_bytes, uint8_t* out) noexcept {
        const uint64_t number = next_number_;
        assert(number != UINT64_MAX);
        if (number >> epoch_bits_ != tx_epoch_) {
            ++tx_epoch_;
            ++key_updates_;
            if (!tx_chain_.take(tx_)) return false;
        }
        ++next_number_;  // before it is used: whatever fails from here on, it is not used again
        header[1] = static_cast<uint8_t>((header[1] & 0xF0) | kProtectedVersion);
        uint8_t* const trailer = out + body_bytes;
        wire::store_be64(trailer, number);
        return tx_.seal(number, header, header_bytes, parts, sizes, num_parts, mode_ == ProtectionMode::Encrypt, out,
                        trailer + kPacketNumberBytes);
    }
    /// Checks one packet and decrypts it in place. `bytes` is at least `header_bytes` + kProtectionBytes.
    Opened open(uint8_t* data, size_t header_bytes, size_t bytes) noexcept {
        const size_t body_bytes = bytes - header_bytes - kProtectionBytes;
        const uint8_t* const trailer = data + header_bytes + body_bytes;
        const uint64_t number = wire::load_be64(trailer);
        if (!window_.admits(number)) return Opened::Replayed;
        const uint64_t epoch = number >> epoch_bits_;
        TrafficKey* const key = rx_now_->is_for(epoch) ? rx_now_ : rx_next_->is_for(epoch) ? rx_next_ : rx_old_->is_for(epoch) ? rx_old_ : nullptr;
        if (!key) return Opened::Forged;
        if (!key->open(number, data, header_bytes, data + header_bytes, body_bytes, mode_ == ProtectionMode::Encrypt,
                       trailer + kPacketNumberBytes))
            return Opened::Forged;
        window_.mark(number);
        if (key == rx_next_) go_on();
        return Opened::Ok;
    }
    ProtectionMode mode() const noexcept { return mode_; }
    uint64_t packets_sealed() const noexcept { return next_number_; }
    uint64_t key_updates() const noexcept { return key_updates_; }

private:
    static const LibCrypto& library() {
        const LibCrypto* l = LibCrypto::get();
        if (!l) throw std::runtime_error(LibCrypto::why_not());
        return *l;
    }
    // The peer has begun to use the next key: what is still on the way under the present one stays readable.
    void go_on() noexcept {
        TrafficKey* const spare = rx_old_;
        rx_old_ = rx_now_;
        rx_now_ = rx_next_;
        rx_next_ = spare;
        ++key_updates_;
        (void)rx_chain_.take(*rx_next_);  // a key that cannot be set opens nothing
    }

    const LibCrypto& l_;
    ProtectionMode mode_;
    uint32_t epoch_bits_;
    uint64_t next_number_ = 0, tx_epoch_ = 0, key_updates_ = 0;
    SecretChain tx_chain_, rx_chain_;
    TrafficKey tx_, rx0_, rx1_, rx2_;
    TrafficKey *rx_old_ = &rx0_, *rx_now_ = &rx1_, *rx_next_ = &rx2_;
    ReplayWindow window_;
};

}  // namespace farstep
