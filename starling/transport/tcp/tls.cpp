#include "starling/transport/tcp/tls.h"

#include <cerrno>
#include <cstring>
#include <string_view>
#include <utility>

#include <fmt/format.h>
#include <openssl/err.h>
#include <openssl/ssl.h>
#include <openssl/x509v3.h>
#include <sys/socket.h>

#include "starling/core/error.h"

namespace starling::tcp {
namespace {

constexpr std::string_view kIdentity = "starling";
constexpr std::string_view kBindingLabel = "EXPORTER-starling";
constexpr unsigned char kSuite[] = {0x13, 0x01};  // TLS_AES_128_GCM_SHA256, whose hash the PSK has
// Bytes in one direction in one system call.
constexpr std::size_t kMost = 128 * 1024;

void need(bool succeeded, const char* what) {
  if (!succeeded) throw Error(fmt::format("tcp transport: OpenSSL has no {}", what));
}

// Why OpenSSL has failed: its first error, of which the later ones follow.
const char* first_reason() {
  const unsigned long error = ERR_peek_error();
  if (ERR_SYSTEM_ERROR(error)) return std::strerror(ERR_GET_REASON(error));
  const char* const reason = ERR_reason_error_string(error);
  return reason ? reason : "unknown reason";
}

// --- the pre-shared key ---

const std::string& key_of(SSL* ssl) {
  return *static_cast<const std::string*>(SSL_CTX_get_app_data(SSL_get_SSL_CTX(ssl)));
}

SSL_SESSION* session_by_key(SSL* ssl) {
  const std::string& key = key_of(ssl);
  SSL_SESSION* const session = SSL_SESSION_new();
  if (session &&
      SSL_SESSION_set1_master_key(session, reinterpret_cast<const unsigned char*>(key.data()), key.size()) &&
      SSL_SESSION_set_cipher(session, SSL_CIPHER_find(ssl, kSuite)) &&
      SSL_SESSION_set_protocol_version(session, TLS1_3_VERSION))
    return session;
  SSL_SESSION_free(session);
  return nullptr;
}

int use_key(SSL* ssl, const EVP_MD*, const unsigned char** identity, std::size_t* length,
            SSL_SESSION** session) {
  *session = session_by_key(ssl);
  *identity = reinterpret_cast<const unsigned char*>(kIdentity.data());
  *length = kIdentity.size();
  return *session != nullptr;
}

int find_key(SSL* ssl, const unsigned char* identity, std::size_t length, SSL_SESSION** session) {
  const bool ours = std::string_view(reinterpret_cast<const char*>(identity), length) == kIdentity;
  *session = ours ? session_by_key(ssl) : nullptr;
  return 1;
}

}  // namespace

// The socket, as OpenSSL sees it.
struct TlsSession::Wire {
  static TlsSession& of(BIO* bio) { return *static_cast<TlsSession*>(BIO_get_data(bio)); }

  static int write(BIO* bio, const char* bytes, int n) {
    auto& out = of(bio).out_;
    const auto* const from = reinterpret_cast<const std::byte*>(bytes);
    out.insert(out.end(), from, from + n);
    return n;
  }

  static int read(BIO* bio, char* to, int n) {
    TlsSession& session = of(bio);
    BIO_clear_retry_flags(bio);
    const ssize_t got = ::recv(session.socket_, to, static_cast<std::size_t>(n), 0);
    if (got > 0) session.heard_ = true;
    if (got == 0) session.end_ = asio::error::eof;
    if (got < 0 && (errno == EAGAIN || errno == EINTR))
      BIO_set_retry_read(bio);
    else if (got < 0)
      session.end_ = asio::error_code(errno, asio::error::get_system_category());
    return static_cast<int>(got);
  }

  static long control(BIO* bio, int command, long, void*) {
    if (command == BIO_CTRL_EOF) return of(bio).end_ == asio::error::eof;
    return command == BIO_CTRL_FLUSH;
  }

  static BIO* make(TlsSession& session) {
    static BIO_METHOD* const method = [] {
      BIO_METHOD* const made = BIO_meth_new(BIO_get_new_index() | BIO_TYPE_SOURCE_SINK, "starling");
      BIO_meth_set_write(made, write);
      BIO_meth_set_read(made, read);
      BIO_meth_set_ctrl(made, control);
      return made;
    }();
    BIO* const bio = BIO_new(method);
    need(bio != nullptr, "BIO");
    BIO_set_data(bio, &session);
    BIO_set_init(bio, 1);
    return bio;
  }
};

// --- Tls ---

void Tls::Free::operator()(ssl_ctx_st* context) const { SSL_CTX_free(context); }
void TlsSession::Free::operator()(ssl_st* session) const { SSL_free(session); }

Tls::Tls(const TlsOptions& options, const std::string& token)
    : key_(options.certificate.empty() ? sign(token, "TLS 1.3 pre-shared key") : ""),
      dialer_(make(Role::dialer, options)),
      acceptor_(make(Role::acceptor, options)) {}

Tls::Context Tls::make(Role role, const TlsOptions& options) {
  Context made(SSL_CTX_new(TLS_method()));
  SSL_CTX* const context = made.get();
  need(context && SSL_CTX_set_min_proto_version(context, TLS1_3_VERSION), "TLS 1.3");
  SSL_CTX_set_options(context, SSL_OP_IGNORE_UNEXPECTED_EOF);  // as of any broken connection
  SSL_CTX_set_session_cache_mode(context, SSL_SESS_CACHE_OFF);
  SSL_CTX_set_num_tickets(context, 0);
  SSL_CTX_set_mode(context, SSL_MODE_ENABLE_PARTIAL_WRITE);
  SSL_CTX_set_read_ahead(context, 1);
  SSL_CTX_set_default_read_buffer_len(context, kMost);
  SSL_CTX_set_app_data(context, const_cast<std::string*>(&key_));
  if (!key_.empty()) {
    need(SSL_CTX_set_ciphersuites(context, "TLS_AES_128_GCM_SHA256"), "TLS_AES_128_GCM_SHA256");
    if (role == Role::dialer)
      SSL_CTX_set_psk_use_session_callback(context, use_key);
    else
      SSL_CTX_set_psk_find_session_callback(context, find_key);
    return made;
  }
  ERR_clear_error();
  const auto refuse = [](const char* variable, const std::string& path, const char* wanted) {
    throw UsageError(
        fmt::format("environment: {}='{}' is not {}: {}", variable, path, wanted, first_reason()));
  };
  if (SSL_CTX_use_certificate_chain_file(context, options.certificate.c_str()) != 1)
    refuse("STARLING_TLS_CERT", options.certificate, "a file of PEM certificates");
  if (SSL_CTX_use_PrivateKey_file(context, options.key.c_str(), SSL_FILETYPE_PEM) != 1)
    refuse("STARLING_TLS_KEY", options.key, "a file with the certificate's private key in PEM");
  if (SSL_CTX_load_verify_file(context, options.authority.c_str()) != 1)
    refuse("STARLING_TLS_CA", options.authority, "a file of PEM certificates");
  SSL_CTX_set_verify(context, SSL_VERIFY_PEER | SSL_VERIFY_FAIL_IF_NO_PEER_CERT, nullptr);
  return made;
}

// --- TlsSession ---

TlsSession::TlsSession(const Tls& tls, Role role, int socket, const asio::ip::address& address)
    : ssl_(SSL_new((role == Role::dialer ? tls.dialer_ : tls.acceptor_).get())), socket_(socket) {
  need(ssl_ != nullptr, "TLS session");
  BIO* const bio = Wire::make(*this);
  SSL_set_bio(ssl_.get(), bio, bio);
  if (role == Role::acceptor) {
    SSL_set_accept_state(ssl_.get());
    return;
  }
  SSL_set_connect_state(ssl_.get());
  // The bytes, because the text of an IPv6 address may name an interface.
  const auto demand = [this](const auto& bytes) {
    need(X509_VERIFY_PARAM_set1_ip(SSL_get0_param(ssl_.get()), bytes.data(), bytes.size()) == 1,
         "check of an address");
  };
  address.is_v6() ? demand(address.to_v6().to_bytes()) : demand(address.to_v4().to_bytes());
}

TlsSession::Step TlsSession::shake_hands() {
  ERR_clear_error();
  const int result = SSL_do_handshake(ssl_.get());
  const int why = SSL_get_error(ssl_.get(), result);
  if (result != 1 && why != SSL_ERROR_WANT_READ) trouble_ = explain();
  // Without its certificate, a server is known by the key alone.
  const bool by_key = !key_of(ssl_.get()).empty();
  if (result == 1 && by_key && SSL_session_reused(ssl_.get()) != 1)
    trouble_ = "TLS with it fails: it has not proven the token";
  asio::error_code error;
  flush(error);
  if (!trouble_.empty()) return Step::failed;
  if (error == asio::error::would_block) return Step::wants_write;
  if (error) trouble_ = error.message();
  if (error) return Step::failed;
  return result == 1 ? Step::done : Step::wants_read;
}

Digest TlsSession::binding() const {
  Digest binding{};
  need(
      SSL_export_keying_material(ssl_.get(), reinterpret_cast<unsigned char*>(binding.data()), binding.size(),
                                 kBindingLabel.data(), kBindingLabel.size(), nullptr, 0, 0) == 1,
      "export of keying material");
  return binding;
}

std::size_t TlsSession::read_some(std::span<std::byte> to, asio::error_code& error) {
  error.clear();
  std::size_t bytes = 0;
  ERR_clear_error();
  const int result = SSL_read_ex(ssl_.get(), to.data(), to.size(), &bytes);
  if (result == 1) return bytes;
  switch (SSL_get_error(ssl_.get(), result)) {
    case SSL_ERROR_WANT_READ:
      error = asio::error::would_block;
      break;
    case SSL_ERROR_ZERO_RETURN:
      error = asio::error::eof;
      break;
    case SSL_ERROR_SYSCALL:
      error = end_ ? end_ : asio::error::eof;
      break;
    default:
      error = asio::error::connection_aborted;
      trouble_ = explain();
  }
  return 0;
}

std::size_t TlsSession::write_some(std::span<const asio::const_buffer> from, asio::error_code& error) {
  error.clear();
  const bool is_repeated = accepted_ > 0;
  for (const auto& buffer : from) {
    if (is_repeated) break;
    for (std::size_t done = 0; done < buffer.size() && out_.size() < kMost;) {
      std::size_t bytes = 0;
      ERR_clear_error();
      const auto* const at = static_cast<const std::byte*>(buffer.data()) + done;
      if (SSL_write_ex(ssl_.get(), at, buffer.size() - done, &bytes) != 1) {
        error = asio::error::connection_aborted;
        trouble_ = explain();
        return 0;
      }
      done += bytes;
      accepted_ += bytes;
    }
  }
  flush(error);
  return error ? 0 : std::exchange(accepted_, 0);
}

void TlsSession::flush(asio::error_code& error) {
  error.clear();
  while (sent_ < out_.size()) {
    const ssize_t sent = ::send(socket_, out_.data() + sent_, out_.size() - sent_, MSG_NOSIGNAL);
    if (sent < 0 && errno == EINTR) continue;
    if (sent < 0) {
      error = asio::error_code(errno, asio::error::get_system_category());
      if (errno == EAGAIN) error = asio::error::would_block;
      return;
    }
    sent_ += static_cast<std::size_t>(sent);
  }
  out_.clear();
  sent_ = 0;
}

std::string TlsSession::explain() const {
  const long verified = SSL_get_verify_result(ssl_.get());
  if (key_of(ssl_.get()).empty() && verified != X509_V_OK)
    return fmt::format("its certificate is refused: {}: see STARLING_TLS_CA and its STARLING_TLS_CERT",
                       X509_verify_cert_error_string(verified));
  const char* const reason = ERR_peek_error() == 0 ? "it closed the connection" : first_reason();
  return fmt::format("TLS with it fails: {}: is STARLING_TLS the same on all workers?", reason);
}

}  // namespace starling::tcp
