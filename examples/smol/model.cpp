#include "model.hpp"

#include <cmath>

namespace smol {
namespace {

// Reads keys of the metadata; the first problem stays.
class MetadataReader {
 public:
  explicit MetadataReader(const GgufFile& file) : file_(file) {}

  uint32_t count(const std::string& key, uint32_t most) {
    const GgufValue* value = file_.find_value(key);
    if (value == nullptr || value->kind != GgufValue::Kind::kInteger) {
      complain("'" + key + "' is missing");
      return 1;
    }
    if (value->integer < 1 || value->integer > most) {
      complain("'" + key + "' is " + std::to_string(value->integer) + ", not from 1 to " +
               std::to_string(most));
      return 1;
    }
    return static_cast<uint32_t>(value->integer);
  }

  double number(const std::string& key, double otherwise) {
    const GgufValue* value = file_.find_value(key);
    if (value == nullptr) return otherwise;
    const double x = value->kind == GgufValue::Kind::kInteger ? static_cast<double>(value->integer)
                                                              : value->number;
    if (!(x > 0.0) || !std::isfinite(x)) complain("'" + key + "' is not a positive number");
    return x;
  }

  void complain(const std::string& why) {
    if (problem_.empty()) problem_ = file_.name() + ": " + why;
  }

  const std::string& problem() const { return problem_; }

 private:
  const GgufFile& file_;
  std::string problem_;
};

std::string read_config(const GgufFile& file, Config* out) {
  const GgufValue* architecture = file.find_value("general.architecture");
  if (architecture == nullptr) return file.name() + ": 'general.architecture' is missing";
  if (architecture->text != "llama") {
    return file.name() + ": architecture " + quoted(architecture->text) +
           ", but this engine runs 'llama' only";
  }
  MetadataReader in(file);
  out->layers = in.count("llama.block_count", 1024);
  out->hidden = in.count("llama.embedding_length", 65536);
  out->q_heads = in.count("llama.attention.head_count", 1024);
  out->kv_heads = in.count("llama.attention.head_count_kv", 1024);
  out->ffn = in.count("llama.feed_forward_length", 1 << 20);
  out->rope_base = in.number("llama.rope.freq_base", 10000.0);
  out->norm_eps = static_cast<float>(in.number("llama.attention.layer_norm_rms_epsilon", 1e-5));
  if (!in.problem().empty()) return in.problem();
  if (out->hidden % out->q_heads != 0 || out->q_heads % out->kv_heads != 0) {
    in.complain("head counts do not divide the hidden size");
    return in.problem();
  }
  out->head_dim = out->hidden / out->q_heads;
  const uint32_t rotated = file.find_value("llama.rope.dimension_count") == nullptr
                               ? out->head_dim
                               : in.count("llama.rope.dimension_count", 65536);
  if (rotated != out->head_dim) in.complain("partial rotary embeddings are not supported");
  if (out->head_dim % 2 != 0) in.complain("an odd head dim cannot be rotated");
  const GgufTensor* embedding = file.find_tensor("token_embd.weight");
  if (embedding == nullptr || embedding->dims.size() != 2) {
    in.complain("tensor 'token_embd.weight' is missing");
  } else {
    out->vocabulary = static_cast<uint32_t>(embedding->dims[1]);
  }
  return in.problem();
}

// What would load and then compute something else than the model means.
std::string find_unsupported(const GgufFile& file, const Config& config) {
  const GgufValue* scaling = file.find_value("llama.rope.scaling.type");
  if ((scaling != nullptr && scaling->text != "none") ||
      file.find_tensor("rope_freqs.weight") != nullptr) {
    return file.name() + ": scaled rotary embeddings are not supported";
  }
  // The tokenizer's ids index the embedding without a further check.
  const GgufValue* tokens = file.find_value("tokenizer.ggml.tokens");
  if (tokens != nullptr && tokens->texts.size() > config.vocabulary) {
    return file.name() + ": " + std::to_string(tokens->texts.size()) + " tokens, but only " +
           std::to_string(config.vocabulary) + " rows of 'token_embd.weight'";
  }
  return "";
}

// Appends a tensor of the expected shape to `out`.
std::string append_matrix(const GgufFile& file,
                          const std::string& name,
                          uint64_t rows,
                          uint64_t columns,
                          std::vector<float>* out) {
  const GgufTensor* tensor = file.find_tensor(name);
  if (tensor == nullptr) return file.name() + ": tensor '" + name + "' is missing";
  const uint64_t have_rows = tensor->dims.size() > 1 ? tensor->dims[1] : 1;
  if (tensor->dims[0] != columns || have_rows != rows || tensor->elements != rows * columns) {
    return file.name() + ": tensor '" + name + "' is not [" + std::to_string(rows) + ", " +
           std::to_string(columns) + "]";
  }
  std::vector<float> values;
  const std::string problem = file.read_tensor(name, &values);
  if (!problem.empty()) return problem;
  out->insert(out->end(), values.begin(), values.end());
  return "";
}

std::string load_layer(const GgufFile& file, const Config& c, uint32_t index, LayerWeights* out) {
  const std::string prefix = "blk." + std::to_string(index) + ".";
  struct Part {
    const char* name;
    uint64_t rows, columns;
    std::vector<float>* out;
  };
  const Part parts[] = {
      {"attn_norm", 1, c.hidden, &out->attention_norm},
      {"attn_q", c.q_size(), c.hidden, &out->qkv},
      {"attn_k", c.kv_size(), c.hidden, &out->qkv},
      {"attn_v", c.kv_size(), c.hidden, &out->qkv},
      {"attn_output", c.hidden, c.q_size(), &out->output},
      {"ffn_norm", 1, c.hidden, &out->ffn_norm},
      {"ffn_gate", c.ffn, c.hidden, &out->gate_up},
      {"ffn_up", c.ffn, c.hidden, &out->gate_up},
      {"ffn_down", c.hidden, c.ffn, &out->down},
  };
  for (const Part& part : parts) {
    const std::string problem =
        append_matrix(file, prefix + part.name + ".weight", part.rows, part.columns, part.out);
    if (!problem.empty()) return problem;
  }
  return "";
}

// Counter-based normal numbers: the same on every machine.
class Noise {
 public:
  explicit Noise(uint64_t seed) : state_(seed) {}

  float normal() {
    const double u = 1.0 - uniform();
    return static_cast<float>(std::sqrt(-2.0 * std::log(u)) *
                              std::cos(6.283185307179586 * uniform()));
  }

  std::vector<float> matrix(uint64_t rows, uint64_t columns, float scale) {
    std::vector<float> out(rows * columns);
    for (float& x : out) x = scale * normal();
    return out;
  }

 private:
  double uniform() {
    state_ += 0x9e3779b97f4a7c15ull;
    uint64_t z = state_;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
    return static_cast<double>((z ^ (z >> 31)) >> 11) * 0x1.0p-53;
  }
  uint64_t state_;
};

}  // namespace

std::string load_model(const GgufFile& file, Model* out) {
  Model model;
  const GgufValue* name = file.find_value("general.name");
  model.name = name != nullptr && !name->text.empty() ? name->text : file.name();
  std::string problem = read_config(file, &model.config);
  if (problem.empty()) problem = find_unsupported(file, model.config);
  if (!problem.empty()) return problem;
  const Config& c = model.config;
  problem = append_matrix(file, "token_embd.weight", c.vocabulary, c.hidden, &model.embedding);
  if (problem.empty())
    problem = append_matrix(file, "output_norm.weight", 1, c.hidden, &model.output_norm);
  if (problem.empty() && file.find_tensor("output.weight") != nullptr) {
    problem = append_matrix(file, "output.weight", c.vocabulary, c.hidden, &model.output);
  }
  model.layers.resize(c.layers);
  for (uint32_t i = 0; i < c.layers && problem.empty(); ++i)
    problem = load_layer(file, c, i, &model.layers[i]);
  if (problem.empty()) *out = std::move(model);
  return problem;
}

Config synthetic_config() {
  Config c;
  c.layers = 4;
  c.hidden = 192;
  c.q_heads = 6;
  c.kv_heads = 2;
  c.head_dim = 32;
  c.ffn = 384;
  c.vocabulary = 512;
  return c;
}

Model synthetic_model(uint64_t seed) {
  Model m;
  m.name = "synthetic";
  m.config = synthetic_config();
  const Config& c = m.config;
  Noise noise(seed);
  const float in_scale = 1.0f / std::sqrt(static_cast<float>(c.hidden));
  m.embedding = noise.matrix(c.vocabulary, c.hidden, 1.0f);
  // Logits with a spread of one: neither a uniform nor a certain next token.
  m.output = noise.matrix(c.vocabulary, c.hidden, in_scale);
  m.output_norm.assign(c.hidden, 1.0f);
  m.layers.resize(c.layers);
  for (LayerWeights& w : m.layers) {
    w.attention_norm.assign(c.hidden, 1.0f);
    w.ffn_norm.assign(c.hidden, 1.0f);
    w.qkv = noise.matrix(c.qkv_size(), c.hidden, in_scale);
    // Queries and keys of about 1.5 give logits with a spread of two or three: sharp, not uniform.
    for (uint64_t i = 0; i < uint64_t{c.q_size() + c.kv_size()} * c.hidden; ++i) w.qkv[i] *= 1.5f;
    w.output = noise.matrix(c.hidden, c.q_size(), 1.0f / std::sqrt(static_cast<float>(c.q_size())));
    w.gate_up = noise.matrix(2 * c.ffn, c.hidden, in_scale);
    w.down = noise.matrix(c.hidden, c.ffn, 1.0f / std::sqrt(static_cast<float>(c.ffn)));
  }
  return m;
}

}  // namespace smol
