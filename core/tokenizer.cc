#include "core/tokenizer.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <optional>
#include <system_error>
#include <utility>

#include "core/errors.h"

namespace fenwick {
namespace {

class ByteTokenizer final : public Tokenizer {
public:
    [[nodiscard]] TokenizerKind kind() const override { return TokenizerKind::kBytes; }
    [[nodiscard]] std::int64_t vocab_size() const override { return 256; }
    [[nodiscard]] std::string identity() const override { return "bytes"; }
    void encode(std::string_view text, const std::string& /*source*/, const TokenSink& sink) const override {
        std::array<std::int32_t, 16384> ids{};
        while (!text.empty()) {
            const std::size_t n = std::min(text.size(), ids.size());
            std::transform(text.begin(), text.begin() + static_cast<std::ptrdiff_t>(n), ids.begin(),
                           [](char c) { return static_cast<std::int32_t>(static_cast<unsigned char>(c)); });
            sink(std::span(ids).first(n));
            text.remove_prefix(n);
        }
    }
};

bool file_exists(const std::filesystem::path& path) {
    std::error_code error;
    return std::filesystem::exists(path, error);
}

/// The SentencePiece model that `choice` names; nothing for bytes.
std::optional<std::filesystem::path> chosen_model(const std::string& choice,
                                                  const std::filesystem::path& model_folder) {
    if (choice == "bytes") return std::nullopt;
    if (choice != "auto") return choice;
    auto own = model_folder / "tokenizer.model";
    return file_exists(own) ? std::optional(std::move(own)) : std::nullopt;
}

}  // namespace

std::unique_ptr<Tokenizer> make_byte_tokenizer() {
    return std::make_unique<ByteTokenizer>();
}

std::unique_ptr<Tokenizer> resolve_tokenizer(const std::string& choice, const std::filesystem::path& model_folder,
                                             std::int64_t vocab_size) {
    const auto model = chosen_model(choice, model_folder);
    auto tokenizer = model ? make_sentencepiece_tokenizer(*model) : make_byte_tokenizer();
    if (tokenizer->vocab_size() > vocab_size) {
        throw ConfigError(fmt::format(
            "tokenizer \"{}\" ({}) makes {} different ids, but the model's vocabulary has {}; use --tokenizer with the "
            "SentencePiece model that the model was trained with, or give token ids (.npy, .bin)",
            choice, tokenizer->identity(), tokenizer->vocab_size(), vocab_size));
    }
    return tokenizer;
}

}  // namespace fenwick
