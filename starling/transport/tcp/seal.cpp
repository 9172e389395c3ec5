#include "starling/transport/tcp/seal.h"

#include <algorithm>

#include <openssl/crypto.h>
#include <openssl/evp.h>

#include "starling/core/error.h"
#include "starling/core/little_endian.h"

namespace starling::tcp {
namespace {

constexpr std::size_t kNonceBytes = 12;  // the number in 8 of them, the others zero

const unsigned char* raw(std::span<const std::byte> bytes) {
  return reinterpret_cast<const unsigned char*>(bytes.data());
}

void demand(int succeeded) {
  if (succeeded != 1) throw Error("tcp transport: OpenSSL has no AES-256-GCM");
}

}  // namespace

void Seal::Free::operator()(evp_cipher_ctx_st* cipher) const { EVP_CIPHER_CTX_free(cipher); }

Seal::Seal(const Digest& key) : cipher_(EVP_CIPHER_CTX_new()) {
  demand(cipher_ != nullptr);
  demand(EVP_EncryptInit_ex(cipher_.get(), EVP_aes_256_gcm(), nullptr, raw(key), nullptr));
}

Seal::Tag Seal::next_tag(std::span<const std::byte> bytes) {
  std::array<std::byte, kNonceBytes> nonce{};
  put(nonce, 0, tags_++);
  Tag tag;
  int nothing = 0;
  unsigned char* const to = reinterpret_cast<unsigned char*>(tag.data());
  demand(EVP_EncryptInit_ex(cipher_.get(), nullptr, nullptr, nullptr, raw(nonce)));
  demand(EVP_EncryptUpdate(cipher_.get(), nullptr, &nothing, raw(bytes), static_cast<int>(bytes.size())));
  demand(EVP_EncryptFinal_ex(cipher_.get(), to, &nothing));
  demand(EVP_CIPHER_CTX_ctrl(cipher_.get(), EVP_CTRL_AEAD_GET_TAG, static_cast<int>(kTag), to));
  return tag;
}

bool Seal::is_next(std::span<const std::byte> bytes, std::span<const std::byte> tag) {
  const Tag expected = next_tag(bytes);
  forged_ = CRYPTO_memcmp(expected.data(), tag.data(), kTag) != 0;
  return !forged_;
}

Seal::Closed Seal::close(Frame frame, std::span<const std::byte> payload) {
  if (!is_sealed()) frame.payload_crc = crc32c(payload);
  Closed closed;
  const auto header = frame.encode();
  std::copy(header.begin(), header.end(), closed.head.begin());
  if (!is_sealed()) return closed;
  const Tag tag = next_tag(header);
  std::copy(tag.begin(), tag.end(), closed.head.begin() + Frame::kBytes);
  if (!payload.empty()) closed.tail = next_tag(payload);
  return closed;
}

std::optional<Frame> Seal::open(std::span<const std::byte> head) {
  const auto header = head.first<Frame::kBytes>();
  if (is_sealed() && !is_next(header, head.subspan(Frame::kBytes))) return std::nullopt;
  return Frame::decode(header);
}

bool Seal::is_intact(const Frame& frame, std::span<const std::byte> payload,
                     std::span<const std::byte> tail) {
  if (!is_sealed()) return crc32c(payload) == frame.payload_crc;
  return payload.empty() || is_next(payload, tail);
}

}  // namespace starling::tcp
