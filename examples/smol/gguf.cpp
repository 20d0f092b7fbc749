#include "gguf.hpp"

#include <cstdio>
#include <cstring>
#include <filesystem>
#include <memory>
#include <new>

#include "gguf_types.hpp"

namespace smol {
namespace {

// Value types of the format.
enum ValueType : uint32_t {
  kU8 = 0,
  kI8 = 1,
  kU16 = 2,
  kI16 = 3,
  kU32 = 4,
  kI32 = 5,
  kF32 = 6,
  kBool = 7,
  kString = 8,
  kArray = 9,
  kU64 = 10,
  kI64 = 11,
  kF64 = 12
};

// Reads little-endian numbers and never past the end: after the first failure everything is 0.
class Cursor {
 public:
  explicit Cursor(const std::vector<uint8_t>& bytes) : bytes_(bytes) {}

  bool failed() const { return failed_; }
  uint64_t at() const { return at_; }
  uint64_t left() const { return failed_ ? 0 : bytes_.size() - at_; }

  template <class T>
  T number() {
    T value{};
    if (left() < sizeof(T)) {
      failed_ = true;
      return value;
    }
    std::memcpy(&value, bytes_.data() + at_, sizeof(T));
    at_ += sizeof(T);
    return value;
  }

  std::string text() {
    const auto length = number<uint64_t>();
    if (length > left()) {
      failed_ = true;
      return "";
    }
    std::string value(reinterpret_cast<const char*>(bytes_.data() + at_), length);
    at_ += length;
    return value;
  }

 private:
  const std::vector<uint8_t>& bytes_;
  uint64_t at_ = 0;
  bool failed_ = false;
};

bool is_integer(uint32_t type) {
  return type == kU8 || type == kI8 || type == kU16 || type == kI16 || type == kU32 ||
         type == kI32 || type == kBool || type == kU64 || type == kI64;
}

int64_t read_integer(Cursor& in, uint32_t type) {
  switch (type) {
    case kU8:
    case kBool: return in.number<uint8_t>();
    case kI8: return in.number<int8_t>();
    case kU16: return in.number<uint16_t>();
    case kI16: return in.number<int16_t>();
    case kU32: return in.number<uint32_t>();
    case kI32: return in.number<int32_t>();
    case kU64: return static_cast<int64_t>(in.number<uint64_t>());
    default: return in.number<int64_t>();
  }
}

// Of one array element: a string has at least its length.
uint64_t least_bytes(uint32_t type) {
  switch (type) {
    case kU8:
    case kI8:
    case kBool: return 1;
    case kU16:
    case kI16: return 2;
    case kU32:
    case kI32:
    case kF32: return 4;
    default: return 8;
  }
}

double read_number(Cursor& in, uint32_t type) {
  return type == kF32 ? static_cast<double>(in.number<float>()) : in.number<double>();
}

std::string read_array(Cursor& in, GgufValue* value) {
  const auto type = in.number<uint32_t>();
  const auto count = in.number<uint64_t>();
  if (in.failed()) return "the file ends inside an array";
  if (!is_integer(type) && type != kF32 && type != kF64 && type != kString) {
    return "an array has the unknown element type " + std::to_string(type);
  }
  // Refused before anything is stored: a corrupt count cannot ask for more than the file holds.
  if (count > in.left() / least_bytes(type))
    return "an array claims " + std::to_string(count) + " elements, more than the file holds";
  for (uint64_t i = 0; i < count && !in.failed(); ++i) {
    if (type == kString) {
      value->texts.push_back(in.text());
    } else if (is_integer(type)) {
      value->integers.push_back(read_integer(in, type));
    } else {
      value->numbers.push_back(read_number(in, type));
    }
  }
  value->kind = type == kString
                    ? GgufValue::Kind::kTexts
                    : (is_integer(type) ? GgufValue::Kind::kIntegers : GgufValue::Kind::kNumbers);
  return "";
}

std::string read_value(Cursor& in, GgufValue* value) {
  const auto type = in.number<uint32_t>();
  if (in.failed()) return "the file ends inside the metadata";
  if (type == kArray) return read_array(in, value);
  if (type == kString) {
    value->kind = GgufValue::Kind::kText;
    value->text = in.text();
  } else if (is_integer(type)) {
    value->kind = GgufValue::Kind::kInteger;
    value->integer = read_integer(in, type);
  } else if (type == kF32 || type == kF64) {
    value->kind = GgufValue::Kind::kNumber;
    value->number = read_number(in, type);
  } else {
    return "a value has the unknown type " + std::to_string(type);
  }
  return "";
}

// Everything of a tensor but its place in the file.
std::string read_tensor_entry(Cursor& in, const std::string& name, GgufTensor* tensor) {
  const auto dims = in.number<uint32_t>();
  if (dims < 1 || dims > 4)
    return "tensor " + quoted(name) + " has " + std::to_string(dims) + " dimensions, not 1 to 4";
  tensor->elements = 1;
  for (uint32_t i = 0; i < dims; ++i) {
    const auto dim = in.number<uint64_t>();
    if (in.failed()) return "the file ends inside the tensor directory";
    if (dim == 0 || dim > (uint64_t{1} << 40) || tensor->elements > (uint64_t{1} << 40) / dim) {
      return "tensor " + quoted(name) + " has an absurd shape";
    }
    tensor->dims.push_back(dim);
    tensor->elements *= dim;
  }
  tensor->type = in.number<uint32_t>();
  tensor->offset = in.number<uint64_t>();
  if (in.failed()) return "the file ends inside the tensor directory";
  const BlockType* type = find_block_type(tensor->type);
  if (type == nullptr) return "";  // refused when it is read
  if (tensor->dims[0] % type->elements != 0) {
    return "tensor " + quoted(name) + " has rows of " + std::to_string(tensor->dims[0]) +
           " elements, not whole blocks";
  }
  tensor->bytes = tensor->elements / type->elements * type->bytes;
  return "";
}

}  // namespace

std::string quoted(const std::string& name) {
  constexpr std::size_t kMost = 64;
  std::string out = "'";
  for (const char c : name.substr(0, kMost)) out += c >= 0x20 && c < 0x7f ? c : '?';
  return out + (name.size() > kMost ? "...'" : "'");
}

std::string GgufFile::load(const std::string& path) {
  // A folder opens like a file and then claims to be as long as a file can be.
  std::error_code ignored;
  if (std::filesystem::exists(path, ignored) && !std::filesystem::is_regular_file(path, ignored))
    return path + ": is no regular file";
  struct Close {
    void operator()(std::FILE* f) const { std::fclose(f); }
  };
  const std::unique_ptr<std::FILE, Close> file(std::fopen(path.c_str(), "rb"));
  if (file == nullptr) return path + ": cannot be opened";
  if (std::fseek(file.get(), 0, SEEK_END) != 0) return path + ": cannot be read";
  const long size = std::ftell(file.get());
  if (size < 0 || std::fseek(file.get(), 0, SEEK_SET) != 0) return path + ": cannot be read";
  std::vector<uint8_t> bytes;
  // The one allocation whose size comes from outside: a sparse file can have any length.
  try {
    bytes.resize(static_cast<std::size_t>(size));
  } catch (const std::bad_alloc&) {
    return path + ": " + std::to_string(size) + " bytes do not fit into memory";
  }
  if (std::fread(bytes.data(), 1, bytes.size(), file.get()) != bytes.size())
    return path + ": cannot be read";
  const std::size_t slash = path.rfind('/');
  return parse(std::move(bytes), slash == std::string::npos ? path : path.substr(slash + 1));
}

std::string GgufFile::parse(std::vector<uint8_t> bytes, const std::string& name) {
  name_ = name;
  bytes_ = std::move(bytes);
  values_.clear();
  tensors_.clear();
  const auto fail = [&](const std::string& why) { return name_ + ": " + why; };
  Cursor in(bytes_);
  if (in.number<uint32_t>() != 0x46554747u)
    return fail("no GGUF file (the first four bytes are not 'GGUF')");
  const auto version = in.number<uint32_t>();
  if (version != 2 && version != 3)
    return fail("GGUF version " + std::to_string(version) + ", not 2 or 3");
  const auto tensor_count = in.number<uint64_t>();
  const auto value_count = in.number<uint64_t>();
  if (in.failed() || tensor_count > in.left() || value_count > in.left()) {
    return fail("the header claims more entries than the file holds");
  }
  for (uint64_t i = 0; i < value_count; ++i) {
    const std::string key = in.text();
    if (in.failed()) return fail("the file ends inside the metadata");
    GgufValue value;
    const std::string problem = read_value(in, &value);
    if (!problem.empty()) return fail(quoted(key) + ": " + problem);
    if (in.failed()) return fail("the file ends inside " + quoted(key));
    if (!values_.emplace(key, std::move(value)).second)
      return fail(quoted(key) + " stands twice in the metadata");
  }
  for (uint64_t i = 0; i < tensor_count; ++i) {
    const std::string tensor_name = in.text();
    if (in.failed()) return fail("the file ends inside the tensor directory");
    GgufTensor tensor;
    const std::string problem = read_tensor_entry(in, tensor_name, &tensor);
    if (!problem.empty()) return fail(problem);
    if (!tensors_.emplace(tensor_name, tensor).second)
      return fail("tensor " + quoted(tensor_name) + " stands twice");
  }
  uint64_t alignment = 32;
  if (const GgufValue* given = find_value("general.alignment"))
    alignment = static_cast<uint64_t>(given->integer);
  if (alignment == 0 || alignment > 65536) return fail("general.alignment is not from 1 to 65536");
  const uint64_t data = (in.at() + alignment - 1) / alignment * alignment;
  for (auto& [tensor_name, tensor] : tensors_) {
    if (tensor.offset % alignment != 0)
      return fail("tensor " + quoted(tensor_name) + " is not aligned");
    if (data > bytes_.size() || tensor.offset > bytes_.size() - data ||
        tensor.bytes > bytes_.size() - data - tensor.offset) {
      return fail("tensor " + quoted(tensor_name) + " needs " + std::to_string(tensor.bytes) +
                  " bytes from " + std::to_string(tensor.offset) +
                  " of the data, but the file ends before");
    }
    tensor.offset += data;
  }
  return "";
}

const GgufTensor* GgufFile::find_tensor(const std::string& name) const {
  const auto found = tensors_.find(name);
  return found == tensors_.end() ? nullptr : &found->second;
}

const GgufValue* GgufFile::find_value(const std::string& key) const {
  const auto found = values_.find(key);
  return found == values_.end() ? nullptr : &found->second;
}

std::string GgufFile::read_tensor(const std::string& name, std::vector<float>* out) const {
  const GgufTensor* tensor = find_tensor(name);
  if (tensor == nullptr) return name_ + ": tensor '" + name + "' is missing";
  const BlockType* type = find_block_type(tensor->type);
  if (type == nullptr) {
    return name_ + ": tensor '" + name + "' has the unsupported type " +
           std::to_string(tensor->type) + " (supported: F32, F16, Q8_0, Q4_0, Q4_1)";
  }
  out->resize(tensor->elements);
  const uint8_t* block = bytes_.data() + tensor->offset;
  for (uint64_t i = 0; i < tensor->elements; i += type->elements, block += type->bytes) {
    type->decode(block, out->data() + i);
  }
  return "";
}

}  // namespace smol
