// Reader of GGUF model files (versions 2 and 3): metadata, tensor directory, dequantization to
// fp32.
//
// Every length and offset is checked against the file before it is used. Functions return an empty
// string, or one sentence that says what is wrong with the file.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace smol {

// A metadata value: one of the fields, by kind.
struct GgufValue {
  enum class Kind { kInteger, kNumber, kText, kTexts, kIntegers, kNumbers };
  Kind kind = Kind::kInteger;
  int64_t integer = 0;
  double number = 0.0;
  std::string text;
  std::vector<std::string> texts;
  std::vector<int64_t> integers;
  std::vector<double> numbers;
};

struct GgufTensor {
  uint32_t type = 0;
  std::vector<uint64_t> dims;  // innermost first, as in the file
  uint64_t elements = 0;
  uint64_t offset = 0;  // of the data, from the start of the file
  uint64_t bytes = 0;
};

class GgufFile {
 public:
  std::string load(const std::string& path);
  // The same from memory; `name` appears in messages.
  std::string parse(std::vector<uint8_t> bytes, const std::string& name);

  const GgufTensor* find_tensor(const std::string& name) const;
  const GgufValue* find_value(const std::string& key) const;
  const std::string& name() const { return name_; }

  // fp32 elements in the order of the file.
  std::string read_tensor(const std::string& name, std::vector<float>* out) const;

 private:
  std::string name_;
  std::vector<uint8_t> bytes_;
  std::map<std::string, GgufValue> values_;
  std::map<std::string, GgufTensor> tensors_;
};

// A name out of a file as messages show it: short, and printable whatever the file holds.
std::string quoted(const std::string& name);

}  // namespace smol
