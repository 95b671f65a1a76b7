// The coordinator's side of one lease: the document's tokens go out, its losses and save points come in and become
// durable. What document_run.h is in embedded mode, with the gang elsewhere. Thread-safe; once closed, every call does
// nothing, so that whoever comes late cannot touch files that the next lease writes.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>

#include "coordinator/nll_sum.h"
#include "coordinator/output_folder.h"
#include "coordinator/rows.h"
#include "coordinator/service/job_folders.h"
#include "coordinator/store/store.h"
#include "core/hash.h"
#include "core/npy.h"

namespace fenwick {

/// The gang that computes it, for the row and for usage.
struct GangFacts {
    std::string id;
    std::string name;
    int ranks = 1;
    std::string device;
    std::string dtype;
};

/// A gang said something that its lease does not allow: it is given up.
class ProtocolFault : public Error {
public:
    explicit ProtocolFault(const std::string& message) : Error(ExitCode::kInternal, message) {}
};

class LeasedDocument {
public:
    /// Opens tokens and losses at the save point. Throws DocumentFailure when the document cannot be read any more,
    /// UnavailableError.
    LeasedDocument(Store& store, JobFolders& folders, ModelCatalog& models, const Lease& lease, const GangFacts& gang);
    ~LeasedDocument();

    [[nodiscard]] const Lease& lease() const { return lease_; }
    // How it stands; these never wait for a disk.
    [[nodiscard]] std::int64_t position() const { return position_.load(); }
    [[nodiscard]] double tokens_per_second() const { return rate_.load(); }

    /// int32 ids, little-endian. Throws DocumentFailure, ProtocolFault.
    [[nodiscard]] std::string read_tokens(std::int64_t first, std::int64_t count);
    /// Of the save point that the lease starts at. Throws ProtocolFault, UnavailableError.
    [[nodiscard]] std::string read_state(std::int64_t offset, std::int64_t most);
    /// Losses [first, ...), which must follow the last ones. Throws DocumentFailure for one that is not finite,
    /// ProtocolFault, UnavailableError.
    void take_losses(std::int64_t first, const std::string& bytes);
    void take_state(std::int64_t position, std::int64_t offset, const std::string& bytes);
    /// Makes everything up to `position` durable, then tells the store. False: fenced.
    bool save(const idl::SavePoint& point);

    /// All losses are there: the document's result becomes visible, once. False: fenced.
    bool complete();
    /// The document itself is bad. False: fenced.
    bool fail(const DocumentFailure& failure);
    /// What the store is to be told so that the document is queued again.
    struct Release {
        LeaseKey key;
        std::string reason;
        bool counts = false;
        std::string row_if_failed;
        WorkDone work;
    };
    /// Closes, too. Nothing when it was closed already.
    [[nodiscard]] std::optional<Release> give_up(const std::string& reason, bool counts);
    /// Its save point is not to be had any more.
    void forget_save();

    /// Whatever comes from now on is dropped.
    void close();

private:
    using Clock = std::chrono::steady_clock;
    [[nodiscard]] WorkDone work_done();
    [[nodiscard]] double seconds_since_save() const;
    [[nodiscard]] DocumentRef shown() const { return folders_.for_client(lease_.document.job_id, lease_.document.ref); }
    void open_losses();
    void close_files();
    void require(bool condition, const std::string& what) const;

    Store& store_;
    JobFolders& folders_;
    Lease lease_;
    GangFacts gang_;
    std::string name_;
    std::atomic<std::int64_t> position_{0};
    std::atomic<double> rate_{0};
    std::mutex mutex_;
    bool closed_ = false;
    std::shared_ptr<OutputFolder> folder_;
    std::shared_ptr<const Tokenizer> tokenizer_;
    std::unique_ptr<TokenReader> reader_;
    std::int64_t trained_tokens_ = 0;
    std::optional<NpyStream> file_;
    NllSum nll_;
    double saved_seconds_ = 0;
    Clock::time_point last_save_ = Clock::now();
    Clock::time_point start_ = Clock::now();
    std::int64_t computed_ = 0;

    std::optional<AppendFile> incoming_;  ///< the state that is on its way
    std::int64_t incoming_position_ = 0;
};

}  // namespace fenwick
