#include "coordinator/store/database.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sqlite3.h>
#include <sys/file.h>

#include <array>
#include <cerrno>
#include <charconv>
#include <chrono>
#include <cstring>
#include <random>

#include "coordinator/store/schema.h"
#include "core/errors.h"

namespace fenwick {
namespace {

constexpr int kBusyMs = 10'000;
constexpr std::int64_t kMostPerPage = 1000;
constexpr std::int64_t kDefaultPage = 100;
constexpr std::int64_t kRetryFullMs = 10'000;

/// Before anything is opened: two coordinators on one file would both hand out its documents.
FileDescriptor take_lock(const std::filesystem::path& file) {
    const std::string name = file.string() + ".lock";
    FileDescriptor fd(::open(name.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0666));
    if (fd.get() < 0) throw UnavailableError(fmt::format("{}: cannot open: {}", name, std::strerror(errno)));
    if (::flock(fd.get(), LOCK_EX | LOCK_NB) == 0) return fd;
    if (errno != EWOULDBLOCK) throw UnavailableError(fmt::format("{}: cannot lock: {}", name, std::strerror(errno)));
    throw UnavailableError(
        fmt::format("{}: another coordinator uses this store; stop it, or configure another data folder", name));
}

void prepare_file(SQLite::Database& database, const std::filesystem::path& file) {
    database.setBusyTimeout(kBusyMs);
    database.exec("PRAGMA journal_mode=WAL");
    database.exec("PRAGMA synchronous=FULL");
    const int version = database.execAndGet("PRAGMA user_version").getInt();
    if (version == kSchemaVersion) return;
    if (version != 0) {
        throw UnavailableError(fmt::format("{}: its format is {}, this program writes {}; use another data folder",
                                           file.string(), version, kSchemaVersion));
    }
    SQLite::Transaction transaction(database, SQLite::TransactionBehavior::IMMEDIATE);
    database.exec(kSchema);
    database.exec("PRAGMA user_version=" + std::to_string(kSchemaVersion));
    transaction.commit();
}

}  // namespace

std::int64_t now_ms() {
    const auto now = std::chrono::system_clock::now().time_since_epoch();
    return std::chrono::duration_cast<std::chrono::milliseconds>(now).count();
}

StoreConnection::StoreConnection(const std::filesystem::path& file, int flags)
    : database_(file.string(), flags, kBusyMs) {}

SQLite::Statement& StoreConnection::prepared(const std::string& sql) {
    auto found = statements_.find(sql);
    if (found == statements_.end()) {
        found = statements_.emplace(sql, SQLite::Statement(database_, sql)).first;
    } else {
        found->second.clearBindings();
    }
    return found->second;
}

Store::Database::Database(const std::filesystem::path& file)
    : file_(file),
      lock_(take_lock(file)),
      writer_([&] {
          try {
              StoreConnection connection(file, SQLite::OPEN_READWRITE | SQLite::OPEN_CREATE);
              prepare_file(connection.raw(), file);
              return connection;
          } catch (const SQLite::Exception& error) {
              rethrow(error);
          }
      }()),
      reader_(file, SQLite::OPEN_READONLY) {}

void Store::Database::rethrow(const SQLite::Exception& error) const {
    const int code = error.getErrorCode() & 0xff;
    const std::string text = fmt::format("{}: {}", file_.string(), error.what());
    if (code == SQLITE_FULL || code == SQLITE_IOERR) {
        throw ServiceFault(ServiceCode::STORAGE_FULL,
                           "the coordinator cannot write its store (" + text + "); nothing was changed", true,
                           kRetryFullMs);
    }
    if (code == SQLITE_CORRUPT || code == SQLITE_NOTADB || code == SQLITE_CANTOPEN || code == SQLITE_READONLY) {
        throw UnavailableError(text);
    }
    throw InternalError(text);
}

void Store::Database::transact(const std::function<void()>& change,
                               std::vector<std::pair<std::string, std::int64_t>>& touched) {
    const std::lock_guard lock(write_mutex_);
    touched_.clear();
    try {
        SQLite::Transaction transaction(writer_.raw(), SQLite::TransactionBehavior::IMMEDIATE);
        change();
        transaction.commit();
    } catch (const SQLite::Exception& error) {
        rethrow(error);
    }
    touched = std::move(touched_);
    touched_.clear();
}

void Store::Database::touch(const std::string& job_id) {
    std::int64_t version = 0;
    {
        Rows row = writer_.query("UPDATE jobs SET version = version + 1 WHERE id = ? RETURNING version", job_id);
        if (!row.next()) return;
        version = row.integer(0);
        (void)row.next();  // the statement is carried out to its end
    }
    for (auto& [id, last] : touched_) {
        if (id == job_id) {
            last = version;
            return;
        }
    }
    touched_.emplace_back(job_id, version);
}

void Store::Database::observe(std::function<void(const std::string&, std::int64_t)> observer) {
    const std::lock_guard lock(observer_mutex_);
    observer_ = std::move(observer);
}

void Store::Database::tell(const std::vector<std::pair<std::string, std::int64_t>>& touched) {
    if (touched.empty()) return;
    std::function<void(const std::string&, std::int64_t)> observer;
    {
        const std::lock_guard lock(observer_mutex_);
        observer = observer_;
    }
    if (!observer) return;
    for (const auto& [id, version] : touched) observer(id, version);
}

std::string new_id(const std::string& prefix) {
    thread_local std::random_device random;
    return fmt::format("{}-{:08x}{:08x}", prefix, random(), random());
}

std::int64_t parse_page_token(const std::string& token) {
    if (token.empty()) return -1;
    std::int64_t value = 0;
    const auto [end, error] = std::from_chars(token.data(), token.data() + token.size(), value);
    if (error != std::errc() || end != token.data() + token.size() || value < 0) {
        throw ServiceFault(ServiceCode::INVALID_ARGUMENT,
                           fmt::format("pageToken '{}': expected an empty one, or nextPageToken of the last page",
                                       token.substr(0, 40)));
    }
    return value;
}

std::int64_t clamp_page(std::int32_t size) {
    if (size < 0) {
        throw ServiceFault(ServiceCode::INVALID_ARGUMENT,
                           fmt::format("pageSize {}: expected 0 (the default) to {}", size, kMostPerPage));
    }
    return size == 0 ? kDefaultPage : std::min<std::int64_t>(size, kMostPerPage);
}

void add_log(StoreConnection& db, const LogLine& line) {
    Rows insert =
        db.query("INSERT INTO logs (time, level, job, custom_id, gang, text, rank) VALUES (?, ?, ?, ?, ?, ?, ?)",
                 now_ms(), static_cast<int>(line.level), line.job_id, line.custom_id, line.gang, line.text);
    if (line.rank) insert.statement().bind(7, *line.rank);
    insert.statement().exec();
}

void Store::log(const LogLine& line) {
    database_->write([&](StoreConnection& db) { add_log(db, line); });
}

idl::LogPage Store::read_logs(const std::string& job_id, std::int64_t after_sequence, std::int32_t most) const {
    return database_->read([&](StoreConnection& db) {
        const std::int64_t limit = clamp_page(most);
        idl::LogPage page;
        page.lastSequence = after_sequence;
        Rows row = db.query(
            "SELECT sequence, time, level, custom_id, gang, rank, text FROM logs WHERE job = ? AND sequence > ? "
            "ORDER BY sequence LIMIT ?",
            job_id, after_sequence, limit + 1);
        while (row.next()) {
            if (std::ssize(page.entries) == limit) {
                page.more = true;
                break;
            }
            idl::LogEntry entry;
            entry.sequence = row.integer(0);
            entry.time = row.integer(1);
            entry.level = static_cast<idl::LogLevel::type>(row.integer(2));
            if (const std::string id = row.text(3); !id.empty()) entry.__set_customId(id);
            if (const std::string gang = row.text(4); !gang.empty()) entry.__set_gang(gang);
            if (!row.is_null(5)) entry.__set_rank(static_cast<std::int32_t>(row.integer(5)));
            entry.text = row.text(6);
            page.lastSequence = entry.sequence;
            page.entries.push_back(std::move(entry));
        }
        return page;
    });
}

}  // namespace fenwick
