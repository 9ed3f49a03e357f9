<?php
// The PHP client in forked workers, as those of a queue: they share one account, and two of them may use the printer at a time. The client is
// made before the fork. The parent's lock stays its own.
declare(strict_types=1);

use Locksidecar\Client;
use Locksidecar\Lock;

is_file('vendor/autoload.php') && require 'vendor/autoload.php'; // composer's; run.py loads the classes itself

const WORKERS = 4;
const ROUNDS = 5;

$client = new Client();
$account = tempnam(sys_get_temp_dir(), 'account');
file_put_contents($account, '0');

$work = function (int $worker) use ($client, $account): void {
    for ($round = 0; $round < ROUNDS; ++$round) {
        // Without the lock, workers would overwrite each other's sums.
        $client->withLock('account:7', function (Lock $lock) use ($account): void {
            $before = (int) file_get_contents($account);
            usleep(2000);
            if ($lost = $lock->lost()) {
                throw $lost;
            }
            file_put_contents($account, (string) ($before + 1));
        }, wait: 30);
    }
    $client->semaphore('printer', limit: 2, wait: 30)->with(function (Lock $permit) use ($worker): void {
        echo "worker $worker prints in slot {$permit->slot()}\n";
    });
};

$mine = $client->lock('workers:start'); // and no child releases it
$children = [];
for ($worker = 1; $worker <= WORKERS; ++$worker) {
    $pid = pcntl_fork();
    if ($pid === 0) {
        $work($worker);
        exit;
    }
    $children[] = $pid;
}
foreach ($children as $pid) {
    pcntl_waitpid($pid, $status);
    pcntl_wexitstatus($status) === 0 || exit(1);
}
$mine->release(); // it would throw if it were lost
echo 'the account has ' . file_get_contents($account) . ' of ' . WORKERS * ROUNDS . "\n";
exit((int) file_get_contents($account) === WORKERS * ROUNDS ? 0 : 1);
