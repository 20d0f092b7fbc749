// Writes small GGUF files into memory, right ones and wrong ones.
#pragma once

#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

namespace smol::test {

// Value types of the format, as its specification numbers them.
enum GgufType : uint32_t {
  kTypeU8 = 0,
  kTypeI8 = 1,
  kTypeU16 = 2,
  kTypeI16 = 3,
  kTypeU32 = 4,
  kTypeI32 = 5,
  kTypeF32 = 6,
  kTypeBool = 7,
  kTypeString = 8,
  kTypeArray = 9,
  kTypeU64 = 10,
  kTypeI64 = 11,
  kTypeF64 = 12
};

// Tensor types.
enum GgufBlock : uint32_t {
  kBlockF32 = 0,
  kBlockF16 = 1,
  kBlockQ4_0 = 2,
  kBlockQ4_1 = 3,
  kBlockQ8_0 = 8,
  kBlockQ4_K = 12
};

class Bytes {
 public:
  template <class T>
  Bytes& put(T value) {
    const std::size_t at = data_.size();
    data_.resize(at + sizeof(T));
    std::memcpy(data_.data() + at, &value, sizeof(T));
    return *this;
  }

  Bytes& put_text(const std::string& text) {
    put<uint64_t>(text.size());
    data_.insert(data_.end(), text.begin(), text.end());
    return *this;
  }

  Bytes& append(const std::vector<uint8_t>& more) {
    data_.insert(data_.end(), more.begin(), more.end());
    return *this;
  }

  void pad_to(std::size_t alignment) {
    while (data_.size() % alignment != 0) data_.push_back(0);
  }

  const std::vector<uint8_t>& data() const { return data_; }
  std::size_t size() const { return data_.size(); }

 private:
  std::vector<uint8_t> data_;
};

class GgufBuilder {
 public:
  uint32_t magic = 0x46554747u;
  uint32_t version = 3;
  std::size_t alignment = 32;

  template <class T>
  void value(const std::string& key, uint32_t type, T number) {
    begin_value(key, type).put<T>(number);
  }

  void text(const std::string& key, const std::string& text) {
    begin_value(key, kTypeString).put_text(text);
  }

  template <class T>
  void array(const std::string& key, uint32_t type, const std::vector<T>& numbers) {
    begin_value(key, kTypeArray).put<uint32_t>(type).put<uint64_t>(numbers.size());
    for (const T number : numbers) values_.put<T>(number);
  }

  void texts(const std::string& key, const std::vector<std::string>& texts) {
    begin_value(key, kTypeArray).put<uint32_t>(kTypeString).put<uint64_t>(texts.size());
    for (const std::string& text : texts) values_.put_text(text);
  }

  // A value whose bytes the caller writes.
  Bytes& begin_value(const std::string& key, uint32_t type) {
    ++value_count;
    return values_.put_text(key).put<uint32_t>(type);
  }

  void tensor(const std::string& name,
              const std::vector<uint64_t>& dims,
              uint32_t type,
              const std::vector<uint8_t>& bytes) {
    data_.pad_to(alignment);
    tensor_at(name, dims, type, data_.size());
    data_.append(bytes);
  }

  void tensor(const std::string& name,
              const std::vector<uint64_t>& dims,
              const std::vector<float>& values) {
    std::vector<uint8_t> bytes(values.size() * sizeof(float));
    std::memcpy(bytes.data(), values.data(), bytes.size());
    tensor(name, dims, kBlockF32, bytes);
  }

  // A directory entry without data.
  void tensor_at(const std::string& name,
                 const std::vector<uint64_t>& dims,
                 uint32_t type,
                 uint64_t offset) {
    ++tensor_count;
    directory_.put_text(name).put<uint32_t>(static_cast<uint32_t>(dims.size()));
    for (const uint64_t dim : dims) directory_.put<uint64_t>(dim);
    directory_.put<uint32_t>(type).put<uint64_t>(offset);
  }

  std::vector<uint8_t> build() const {
    Bytes file;
    file.put<uint32_t>(magic).put<uint32_t>(version);
    file.put<uint64_t>(tensor_count).put<uint64_t>(value_count);
    file.append(values_.data()).append(directory_.data());
    file.pad_to(alignment);
    file.append(data_.data());
    return file.data();
  }

  uint64_t tensor_count = 0;
  uint64_t value_count = 0;

 private:
  Bytes values_;
  Bytes directory_;
  Bytes data_;
};

}  // namespace smol::test
