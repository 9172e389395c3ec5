// Certificates for tests, made by OpenSSL in files of a folder.
#pragma once

#include <cstdio>
#include <filesystem>
#include <memory>
#include <string>

#include <gtest/gtest.h>
#include <openssl/evp.h>
#include <openssl/pem.h>
#include <openssl/x509v3.h>

#include "starling/transport/tcp/tcp.h"

namespace starling {

class Authority {
 public:
  Authority(const std::filesystem::path& folder, const std::string& name)
      : folder_(folder), name_(name), key_(EVP_EC_gen("P-256")) {
    certificate_ = sign(key_.get(), name, "CA:TRUE", "");
    write(name_ + ".pem", [&](FILE* to) { return PEM_write_X509(to, certificate_.get()); });
  }

  // The options of a worker whose certificate is for this address.
  TlsOptions worker(const std::string& name, const std::string& address) const {
    const Key key(EVP_EC_gen("P-256"));
    const Certificate certificate = sign(key.get(), name, "CA:FALSE", "IP:" + address);
    return {write(name + ".pem", [&](FILE* to) { return PEM_write_X509(to, certificate.get()); }),
            write(name + ".key",
                  [&](FILE* to) {
                    return PEM_write_PrivateKey(to, key.get(), nullptr, nullptr, 0, nullptr, nullptr);
                  }),
            folder_ / (name_ + ".pem")};
  }

 private:
  struct Free {
    void operator()(EVP_PKEY* key) const { EVP_PKEY_free(key); }
    void operator()(X509* certificate) const { X509_free(certificate); }
  };
  using Key = std::unique_ptr<EVP_PKEY, Free>;
  using Certificate = std::unique_ptr<X509, Free>;

  // Without an issuer yet: by itself.
  Certificate sign(EVP_PKEY* subject, const std::string& name, const char* basic,
                   const std::string& address) const {
    constexpr long kDay = 86'400;
    Certificate made(X509_new());
    X509_set_version(made.get(), X509_VERSION_3);
    ASN1_INTEGER_set(X509_get_serialNumber(made.get()),
                     static_cast<long>(std::hash<std::string>()(name) >> 2));
    X509_gmtime_adj(X509_getm_notBefore(made.get()), -kDay);
    X509_gmtime_adj(X509_getm_notAfter(made.get()), kDay);
    X509_set_pubkey(made.get(), subject);
    X509_NAME_add_entry_by_txt(X509_get_subject_name(made.get()), "CN", MBSTRING_UTF8,
                               reinterpret_cast<const unsigned char*>(name.c_str()), -1, -1, 0);
    X509* const issuer = certificate_ ? certificate_.get() : made.get();
    X509_set_issuer_name(made.get(), X509_get_subject_name(issuer));
    const auto extend = [&](int nid, const char* value) {
      X509V3_CTX context;
      X509V3_set_ctx(&context, issuer, made.get(), nullptr, nullptr, 0);
      X509_EXTENSION* const extension = X509V3_EXT_conf_nid(nullptr, &context, nid, value);
      X509_add_ext(made.get(), extension, -1);
      X509_EXTENSION_free(extension);
    };
    extend(NID_basic_constraints, basic);
    if (!address.empty()) extend(NID_subject_alt_name, address.c_str());
    EXPECT_GT(X509_sign(made.get(), key_.get(), EVP_sha256()), 0);
    return made;
  }

  template <class F>
  std::string write(const std::string& name, F&& f) const {
    const std::string path = folder_ / name;
    FILE* const file = std::fopen(path.c_str(), "w");
    EXPECT_TRUE(file && f(file) == 1) << path;
    std::fclose(file);
    std::filesystem::permissions(path,
                                 std::filesystem::perms::owner_read | std::filesystem::perms::owner_write);
    return path;
  }

  const std::filesystem::path folder_;
  const std::string name_;
  const Key key_;
  Certificate certificate_;
};

}  // namespace starling
