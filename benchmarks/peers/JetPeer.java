import com.hazelcast.config.Config;
import com.hazelcast.config.NetworkConfig;
import com.hazelcast.core.Hazelcast;
import com.hazelcast.core.HazelcastInstance;
import com.hazelcast.jet.Job;
import com.hazelcast.jet.accumulator.LongDoubleAccumulator;
import com.hazelcast.jet.aggregate.AggregateOperation;
import com.hazelcast.jet.aggregate.AggregateOperation1;
import com.hazelcast.jet.config.JobConfig;
import com.hazelcast.jet.config.ProcessingGuarantee;
import com.hazelcast.jet.datamodel.KeyedWindowResult;
import com.hazelcast.jet.datamodel.Tuple2;
import com.hazelcast.jet.kafka.KafkaSources;
import com.hazelcast.jet.pipeline.Pipeline;
import com.hazelcast.jet.pipeline.Sink;
import com.hazelcast.jet.pipeline.SinkBuilder;
import com.hazelcast.jet.pipeline.StreamStage;
import com.hazelcast.jet.pipeline.WindowDefinition;
import java.util.Properties;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;

/** The works on Hazelcast Jet: one member in this process, one job. Its source never ends, so the last windows stay open. */
public final class JetPeer {
    private static final AggregateOperation1<Reading, LongDoubleAccumulator, Tuple2<Long, Double>> COUNT_AND_MEAN =
        AggregateOperation.withCreate(LongDoubleAccumulator::new)
            .<Reading>andAccumulate((sums, reading) -> set(sums, sums.getLong() + 1, sums.getDouble() + reading.temp))
            .andCombine((sums, more) ->
                set(sums, sums.getLong() + more.getLong(), sums.getDouble() + more.getDouble()))
            .andDeduct((sums, less) ->
                set(sums, sums.getLong() - less.getLong(), sums.getDouble() - less.getDouble()))
            .andExportFinish(sums -> Tuple2.tuple2(sums.getLong(), sums.getDouble() / sums.getLong()));

    private static final AggregateOperation1<
            KeyedWindowResult<String, Tuple2<Long, Double>>, LongDoubleAccumulator, Tuple2<Long, Double>> SUM_AND_PEAK =
        AggregateOperation.withCreate(() -> new LongDoubleAccumulator(0, Double.NEGATIVE_INFINITY))
            .<KeyedWindowResult<String, Tuple2<Long, Double>>>andAccumulate((peak, ten) ->
                set(peak, peak.getLong() + ten.result().f0(), Math.max(peak.getDouble(), ten.result().f1())))
            .andCombine((peak, more) ->
                set(peak, peak.getLong() + more.getLong(), Math.max(peak.getDouble(), more.getDouble())))
            .andExportFinish(peak -> Tuple2.tuple2(peak.getLong(), peak.getDouble()));

    private JetPeer() {}

    public static void main(String[] arguments) throws Exception {
        Answer.haltOnFailure();
        Work work = Work.of(arguments);
        HazelcastInstance member = Hazelcast.newHazelcastInstance(config(work));
        Job job = member.getJet().newJob(pipeline(work), new JobConfig()
            .setProcessingGuarantee(ProcessingGuarantee.EXACTLY_ONCE)
            .setSnapshotIntervalMillis(work.snapshotEveryMs()));
        Answer.report(work, job.getFuture());
    }

    private static Config config(Work work) {
        Config config = new Config();
        config.setClusterName("benchmark-" + ProcessHandle.current().pid());
        config.setProperty("hazelcast.phone.home.enabled", "false");
        config.setProperty("hazelcast.logging.type", "none");
        config.setProperty("hazelcast.socket.bind.any", "false");
        config.getJetConfig().setEnabled(true).setCooperativeThreadCount(work.parallelism());
        NetworkConfig network = config.getNetworkConfig();
        network.getJoin().getAutoDetectionConfig().setEnabled(false);
        network.getJoin().getMulticastConfig().setEnabled(false);
        network.getInterfaces().setEnabled(true).addInterface("127.0.0.1");
        return config;
    }

    private static Pipeline pipeline(Work work) {
        Properties kafka = new Properties();
        kafka.setProperty("bootstrap.servers", work.bootstrap());
        kafka.setProperty("auto.offset.reset", "earliest");
        kafka.setProperty("key.deserializer", ByteArrayDeserializer.class.getName());
        kafka.setProperty("value.deserializer", ByteArrayDeserializer.class.getName());
        Pipeline pipeline = Pipeline.create();
        StreamStage<Reading> readings = pipeline
            .readFrom(KafkaSources.<byte[], byte[], Reading>kafka(
                kafka, record -> Reading.of(record.value()), work.topic()))
            .withTimestamps(reading -> reading.ts, work.delayMs())
            .setLocalParallelism(work.parallelism());
        if (work.slides()) {
            readings.groupingKey(reading -> reading.device)
                .window(WindowDefinition.sliding(Work.MINUTE, Work.SLIDE))
                .aggregate(COUNT_AND_MEAN)
                .writeTo(sink(Work.SLIDE));
        } else {
            readings.groupingKey(reading -> reading.device)
                .window(WindowDefinition.tumbling(Work.TEN_SECONDS))
                .aggregate(COUNT_AND_MEAN)
                .groupingKey(KeyedWindowResult::key)
                .window(WindowDefinition.tumbling(Work.MINUTE))
                .aggregate(SUM_AND_PEAK)
                .writeTo(sink(Work.MINUTE));
        }
        return pipeline;
    }

    private static void set(LongDoubleAccumulator sums, long readings, double value) {
        sums.setLong(readings);
        sums.setDouble(value);
    }

    private static Sink<KeyedWindowResult<String, Tuple2<Long, Double>>> sink(long everyMs) {
        return SinkBuilder.sinkBuilder("answer", context -> "answer")
            .<KeyedWindowResult<String, Tuple2<Long, Double>>>receiveFn((nothing, result) ->
                Answer.add(result.start() / everyMs, result.result().f0(), result.result().f1()))
            .build();
    }
}
