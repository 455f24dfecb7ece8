// The few functions of the system's libcrypto that packets are protected with, found when they are first needed.
//
// Loaded and not linked: the module then works where the library is missing, with protection off, and building it needs no
// headers of OpenSSL. A process that has the library already (Python's ssl module brings it) gets that same one.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <dlfcn.h>
#include <string>

namespace farstep {

struct LibCrypto {
    using Context = void;
    using Cipher = void;
    using Digest = void;

    Context* (*context_new)() = nullptr;
    void (*context_free)(Context*) = nullptr;
    const Cipher* (*aes_128_gcm)() = nullptr;
    const Cipher* (*aes_256_gcm)() = nullptr;
    int (*encrypt_init)(Context*, const Cipher*, void*, const uint8_t*, const uint8_t*) = nullptr;
    int (*encrypt_update)(Context*, uint8_t*, int*, const uint8_t*, int) = nullptr;
    int (*encrypt_final)(Context*, uint8_t*, int*) = nullptr;
    int (*decrypt_init)(Context*, const Cipher*, void*, const uint8_t*, const uint8_t*) = nullptr;
    int (*decrypt_update)(Context*, uint8_t*, int*, const uint8_t*, int) = nullptr;
    int (*decrypt_final)(Context*, uint8_t*, int*) = nullptr;
    int (*control)(Context*, int, int, void*) = nullptr;
    const Digest* (*sha256)() = nullptr;
    uint8_t* (*hmac)(const Digest*, const void*, int, const uint8_t*, size_t, uint8_t*, unsigned*) = nullptr;
    void (*cleanse)(void*, size_t) = nullptr;

    static constexpr int kGetTag = 0x10, kSetTag = 0x11;  // EVP_CTRL_AEAD_*: part of the library's binary interface

    /// The library, null where there is none that has all of this; `why_not()` says more. Loaded once a process.
    static const LibCrypto* get();
    static const std::string& why_not();

private:
    struct Found;
    static const Found& found();
};

struct LibCrypto::Found {
    LibCrypto functions;
    bool is_complete = false;
    std::string reason;

    Found() {
        // FARSTEP_LIBCRYPTO names another library, where the system's has another name or another place.
        const char* chosen = std::getenv("FARSTEP_LIBCRYPTO");
        const char* names[] = {"libcrypto.so.3", "libcrypto.so.1.1"};
        void* library = nullptr;
        if (chosen && *chosen) library = ::dlopen(chosen, RTLD_NOW | RTLD_LOCAL);
        else
            for (const char* name : names)
                if ((library = ::dlopen(name, RTLD_NOW | RTLD_LOCAL))) break;
        if (!library) {
            const char* error = ::dlerror();
            reason = std::string("the library libcrypto of OpenSSL 3 cannot be loaded: ") + (error ? error : "unknown error");
            return;
        }
        is_complete = true;
        LibCrypto& f = functions;
        load(library, "EVP_CIPHER_CTX_new", f.context_new);
        load(library, "EVP_CIPHER_CTX_free", f.context_free);
        load(library, "EVP_aes_128_gcm", f.aes_128_gcm);
        load(library, "EVP_aes_256_gcm", f.aes_256_gcm);
        load(library, "EVP_EncryptInit_ex", f.encrypt_init);
        load(library, "EVP_EncryptUpdate", f.encrypt_update);
        load(library, "EVP_EncryptFinal_ex", f.encrypt_final);
        load(library, "EVP_DecryptInit_ex", f.decrypt_init);
        load(library, "EVP_DecryptUpdate", f.decrypt_update);
        load(library, "EVP_DecryptFinal_ex", f.decrypt_final);
        load(library, "EVP_CIPHER_CTX_ctrl", f.control);
        load(library, "EVP_sha256", f.sha256);
        load(library, "HMAC", f.hmac);
        load(library, "OPENSSL_cleanse", f.cleanse);
    }
    template <class F>
    void load(void* library, const char* name, F*& function) {
        function = reinterpret_cast<F*>(::dlsym(library, name));
        if (function) return;
        is_complete = false;
        reason = std::string("the library libcrypto lacks ") + name;
    }
};
inline const LibCrypto::Found& LibCrypto::found() {
    static const Found found;  // never unloaded: contexts may outlive everything else
    return found;
}
inline const LibCrypto* LibCrypto::get() { return found().is_complete ? &found().functions : nullptr; }
inline const std::string& LibCrypto::why_not() { return found().reason; }

}  // namespace farstep
